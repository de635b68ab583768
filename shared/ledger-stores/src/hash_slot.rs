//! Redis Cluster's hash slots: which keys go down together.

/// Hash slots of a cluster.
pub(crate) const HASH_SLOTS: u16 = 16_384;

/// The polynomial of CRC-16/XMODEM.
const POLYNOMIAL: u16 = 0x1021;

const TABLE: [u16; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = (byte as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ POLYNOMIAL };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

/// The hash slot of a key: that of the part between the first `{` and the next `}`, where there is one and it is not empty. A
/// key of digest bytes may well hold both.
pub(crate) fn hash_slot(key: &[u8]) -> u16 {
    crc16(tag(key).unwrap_or(key)) % HASH_SLOTS
}

fn tag(key: &[u8]) -> Option<&[u8]> {
    let open = key.iter().position(|byte| *byte == b'{')?;
    let rest = &key[open + 1..];
    let close = rest.iter().position(|byte| *byte == b'}')?;
    (close > 0).then(|| &rest[..close])
}

fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| (crc << 8) ^ TABLE[usize::from((crc >> 8) as u8 ^ byte)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_the_published_checksum() {
        // The check value of CRC-16/XMODEM, which the Redis Cluster specification names.
        assert_eq!(crc16(b"123456789"), 0x31c3);
    }

    #[cfg(feature = "redis")]
    #[test]
    fn agrees_with_the_client_on_tags_and_digests() {
        use ::redis::cluster_routing::Slot;
        let tagged: [&[u8]; 8] =
            [b"foo", b"{user1000}.following", b"foo{}{bar}", b"foo{{bar}}zap", b"{", b"}{", b"{}", b""];
        let digests: Vec<Vec<u8>> = (0..2_000u64)
            .map(|seed| {
                let mut key = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes().repeat(2);
                // Every other one with a tag somewhere.
                if seed % 2 == 0 {
                    let (open, close) = (usize::from(key[0]) % 8, 8 + usize::from(key[9]) % 8);
                    (key[open], key[close]) = (b'{', b'}');
                }
                key
            })
            .collect();
        for key in tagged.into_iter().chain(digests.iter().map(Vec::as_slice)) {
            assert_eq!(Slot::new(hash_slot(key)), Some(Slot::for_key(key)), "{key:?}");
        }
    }
}
