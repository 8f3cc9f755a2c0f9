//! What a file must hold: bytes by page, so that holes of gigabytes cost nothing.

use std::collections::BTreeMap;

const PAGE_BYTES: u64 = 4096;

/// The contents of one file.
#[derive(Clone, Default, Debug, PartialEq, Eq)]
pub(crate) struct Contents {
    size: u64,
    /// Pages that were ever written to; all others are zeros. Bytes past the size are zeros.
    pages: BTreeMap<u64, Box<[u8; PAGE_BYTES as usize]>>,
}

impl Contents {
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// What a read of up to `bytes` gets.
    pub(crate) fn read(&self, offset: u64, bytes: usize) -> Vec<u8> {
        let count = (bytes as u64).min(self.size.saturating_sub(offset)) as usize;
        let mut out = vec![0; count];
        each_page(offset, count as u64, |page, within, done, step| {
            if let Some(held) = self.pages.get(&page) {
                out[done..done + step].copy_from_slice(&held[within..within + step]);
            }
        });
        out
    }

    /// Writes, growing the file if need be; a write of nothing grows nothing.
    pub(crate) fn write(&mut self, offset: u64, bytes: &[u8]) {
        each_page(offset, bytes.len() as u64, |page, within, done, step| {
            let held = self.pages.entry(page).or_insert_with(|| Box::new([0; PAGE_BYTES as usize]));
            held[within..within + step].copy_from_slice(&bytes[done..done + step]);
        });
        if !bytes.is_empty() {
            self.size = self.size.max(offset + bytes.len() as u64);
        }
    }

    /// Makes a range zeros, as far as the file reaches.
    pub(crate) fn zero(&mut self, offset: u64, bytes: u64) {
        let end = (offset + bytes).min(self.size);
        if offset >= end {
            return;
        }
        let whole = offset.div_ceil(PAGE_BYTES)..end / PAGE_BYTES;
        let inside: Vec<u64> =
            if whole.start < whole.end { self.pages.range(whole).map(|(&page, _)| page).collect() } else { vec![] };
        for page in inside {
            self.pages.remove(&page);
        }
        for page in [offset / PAGE_BYTES, (end - 1) / PAGE_BYTES] {
            if let Some(held) = self.pages.get_mut(&page) {
                let from = offset.saturating_sub(page * PAGE_BYTES).min(PAGE_BYTES) as usize;
                let to = (end - page * PAGE_BYTES).min(PAGE_BYTES) as usize;
                held[from..to].fill(0);
            }
        }
    }

    pub(crate) fn truncate(&mut self, size: u64) {
        if size < self.size {
            self.zero(size, self.size - size);
            self.pages.split_off(&size.div_ceil(PAGE_BYTES));
        }
        self.size = size;
    }

    /// Runs of pages that may hold something, clipped to the size: offset and bytes.
    pub(crate) fn extents(&self) -> Vec<(u64, Vec<u8>)> {
        let mut extents: Vec<(u64, u64)> = Vec::new();
        for &page in self.pages.keys() {
            let (start, end) = (page * PAGE_BYTES, ((page + 1) * PAGE_BYTES).min(self.size));
            match extents.last_mut() {
                Some((_, last)) if *last == start => *last = end,
                _ if start < end => extents.push((start, end)),
                _ => {}
            }
        }
        extents.into_iter().map(|(start, end)| (start, self.read(start, (end - start) as usize))).collect()
    }

    /// Whether `offset..end` holds zeros only.
    pub(crate) fn is_zero(&self, offset: u64, end: u64) -> bool {
        let pages = self.pages.range(offset / PAGE_BYTES..end.div_ceil(PAGE_BYTES));
        pages.into_iter().all(|(&page, held)| {
            let from = offset.saturating_sub(page * PAGE_BYTES).min(PAGE_BYTES) as usize;
            let to = (end - page * PAGE_BYTES).min(PAGE_BYTES) as usize;
            held[from..to].iter().all(|&byte| byte == 0)
        })
    }
}

/// Calls `visit` with page, offset within it, bytes done before and bytes in it.
fn each_page(offset: u64, bytes: u64, mut visit: impl FnMut(u64, usize, usize, usize)) {
    let mut done = 0;
    while done < bytes {
        let at = offset + done;
        let within = at % PAGE_BYTES;
        let step = (PAGE_BYTES - within).min(bytes - done);
        visit(at / PAGE_BYTES, within as usize, done as usize, step as usize);
        done += step;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use oracle::Rng;

    #[test]
    fn it_does_what_a_vector_does() {
        let (mut contents, mut vector, mut rng) = (Contents::default(), Vec::<u8>::new(), Rng::new(7));
        for _ in 0..5_000 {
            let (offset, bytes) = (rng.below(40_000), rng.below(12_000));
            match rng.below(4) {
                0 => {
                    let mut data = vec![0; bytes as usize];
                    rng.fill(&mut data);
                    contents.write(offset, &data);
                    if bytes > 0 {
                        vector.resize(vector.len().max((offset + bytes) as usize), 0);
                        vector[offset as usize..(offset + bytes) as usize].copy_from_slice(&data);
                    }
                }
                1 => {
                    contents.truncate(offset);
                    vector.resize(offset as usize, 0);
                }
                2 => {
                    contents.zero(offset, bytes);
                    let end = vector.len().min((offset + bytes) as usize);
                    if (offset as usize) < end {
                        vector[offset as usize..end].fill(0);
                    }
                }
                _ => {
                    let end = vector.len().min((offset + bytes) as usize);
                    let expected = &vector[(offset as usize).min(end)..end];
                    assert_eq!(contents.read(offset, bytes as usize), expected);
                    assert_eq!(contents.is_zero(offset, offset + bytes), expected.iter().all(|&byte| byte == 0));
                }
            }
            assert_eq!(contents.size(), vector.len() as u64);
        }
        let mut rebuilt = Contents::default();
        rebuilt.truncate(contents.size());
        contents.extents().iter().for_each(|(offset, bytes)| rebuilt.write(*offset, bytes));
        assert_eq!(rebuilt.read(0, usize::MAX), vector);
    }
}
