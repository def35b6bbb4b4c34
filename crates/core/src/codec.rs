//! How rows are laid out in bytes: big-endian fixed-width integers in keys, so that keys sort as numbers do, and
//! LEB128 variable-width integers in values. Small enough to read in one sitting, and the only place that knows it.

/// A row's bytes are not what this version writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Malformed;

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the row's bytes are malformed")
    }
}

impl std::error::Error for Malformed {}

/// Appends `value` in LEB128, 1 to 10 bytes.
#[inline]
pub fn put_u64(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// The bytes that [`put_u64`] appends.
pub fn len_u64(value: u64) -> usize {
    (64 - (value | 1).leading_zeros()).div_ceil(7) as usize
}

/// The bytes that [`put_i64`] appends.
pub fn len_i64(value: i64) -> usize {
    len_u64(((value << 1) ^ (value >> 63)) as u64)
}

/// Appends `value` in zigzag LEB128.
#[inline]
pub fn put_i64(out: &mut Vec<u8>, value: i64) {
    put_u64(out, ((value << 1) ^ (value >> 63)) as u64);
}

/// Appends `value` in LEB128, 1 to 19 bytes.
#[inline]
pub fn put_u128(out: &mut Vec<u8>, mut value: u128) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends the length of `bytes`, then `bytes`.
#[inline]
pub fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_u64(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Reads what the `put_` functions wrote, in the same order.
#[derive(Clone, Copy, Debug)]
pub struct Cursor<'a>(pub &'a [u8]);

impl<'a> Cursor<'a> {
    /// One byte.
    #[inline]
    pub fn u8(&mut self) -> Result<u8, Malformed> {
        let (&first, rest) = self.0.split_first().ok_or(Malformed)?;
        self.0 = rest;
        Ok(first)
    }

    /// A LEB128 number that fits `u64`.
    #[inline]
    pub fn u64(&mut self) -> Result<u64, Malformed> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return Err(Malformed);
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }

        Err(Malformed)
    }

    /// A zigzag LEB128 number.
    #[inline]
    pub fn i64(&mut self) -> Result<i64, Malformed> {
        let raw = self.u64()?;
        Ok((raw >> 1) as i64 ^ -((raw & 1) as i64))
    }

    /// A LEB128 number that fits `u32`.
    #[inline]
    pub fn u32(&mut self) -> Result<u32, Malformed> {
        u32::try_from(self.u64()?).map_err(|_| Malformed)
    }

    /// A LEB128 number that fits `u128`.
    pub fn u128(&mut self) -> Result<u128, Malformed> {
        let mut value = 0u128;
        for shift in (0..128).step_by(7) {
            let byte = self.u8()?;
            let bits = u128::from(byte & 0x7f);
            if shift == 126 && bits > 3 {
                return Err(Malformed);
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }

        Err(Malformed)
    }

    /// A big-endian `u64`, as keys have it.
    pub fn be_u64(&mut self) -> Result<u64, Malformed> {
        let (first, rest) = self.0.split_first_chunk::<8>().ok_or(Malformed)?;
        self.0 = rest;
        Ok(u64::from_be_bytes(*first))
    }

    /// A big-endian `u16`, as keys have it.
    pub fn be_u16(&mut self) -> Result<u16, Malformed> {
        let (first, rest) = self.0.split_first_chunk::<2>().ok_or(Malformed)?;
        self.0 = rest;
        Ok(u16::from_be_bytes(*first))
    }

    /// Bytes with their length in front.
    #[inline]
    pub fn bytes(&mut self) -> Result<&'a [u8], Malformed> {
        let length = usize::try_from(self.u64()?).map_err(|_| Malformed)?;
        if length > self.0.len() {
            return Err(Malformed);
        }
        let (bytes, rest) = self.0.split_at(length);
        self.0 = rest;
        Ok(bytes)
    }

    /// Nothing may be left over.
    pub fn end(self) -> Result<(), Malformed> {
        if self.0.is_empty() { Ok(()) } else { Err(Malformed) }
    }
}

/// The nearest number of 64 bits, where one fits no other into a message or a forecast.
pub fn clamped(number: i128) -> i64 {
    number.clamp(i64::MIN.into(), i64::MAX.into()) as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_survive_and_overlong_ones_are_refused() {
        for value in [0, 1, 127, 128, 300, u64::MAX / 2, u64::MAX] {
            let mut out = Vec::new();
            put_u64(&mut out, value);
            assert_eq!(out.len(), len_u64(value));
            put_i64(&mut out, value as i64);
            assert_eq!(out.len(), len_u64(value) + len_i64(value as i64));
            put_u128(&mut out, u128::from(value) << 60);
            let mut cursor = Cursor(&out);
            assert_eq!(cursor.u64(), Ok(value));
            assert_eq!(cursor.i64(), Ok(value as i64));
            assert_eq!(cursor.u128(), Ok(u128::from(value) << 60));
            assert_eq!(cursor.end(), Ok(()));
        }
        assert_eq!(Cursor(&[0xff; 10]).u64(), Err(Malformed));
        assert_eq!(Cursor(&[0xff; 19]).u128(), Err(Malformed));
        assert_eq!(Cursor(&[0x80]).u64(), Err(Malformed));
        assert_eq!(Cursor(&[5, 1]).bytes(), Err(Malformed));
    }
}
