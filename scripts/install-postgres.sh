#!/usr/bin/env bash
# Installs PostgreSQL where it is missing, for `slackline bench courses --baseline postgres` and its tests (Debian, Ubuntu). No server
# of the system is set up or started: the bench starts one of its own.
set -eu
is_there() { command -v initdb || compgen -G '/usr/lib/postgresql/*/bin/initdb'; }
if is_there >/dev/null; then exit 0; fi

as_root=()
if [ "$(id -u)" != 0 ]; then as_root=(sudo -n); fi
no_main=/etc/postgresql-common/createcluster.d/slackline.conf
trap '"${as_root[@]}" rm -f "$no_main"' EXIT
"${as_root[@]}" mkdir -p "${no_main%/*}"
echo 'create_main_cluster = false' | "${as_root[@]}" tee "$no_main" >/dev/null
"${as_root[@]}" apt-get update -q
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends postgresql
is_there >/dev/null
