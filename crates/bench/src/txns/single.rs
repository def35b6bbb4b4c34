//! `bench reads` and `bench writes`: one operation on one object per transaction, through the public client.
