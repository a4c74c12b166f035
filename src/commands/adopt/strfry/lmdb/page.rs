//! The pages of an LMDB file.
//!
//! ```text
//! page      number 8, pad 2, flags 2, then:
//!   branch, leaf    lower 2, upper 2: where the free space begins and ends; offsets of nodes, 2 each
//!   overflow        pages 4, then the bytes of one value, over as many pages
//!   meta            pad 4, magic 4, version 4, address 8, map size 8, table of free pages 48, table
//!                   of tables 48, last page 8, transaction 8
//! node      low 2, high 2, flags 2, key length 2, key, then:
//!   branch          nothing; low, high and flags are the number of the child page
//!   leaf            the value, as long as low and high say; or 8 bytes, the number of its overflow
//!                   page; the value of a table's name is the table
//! table     pad 4 (in the table of free pages: the length of a page), flags 2, depth 2, pages of
//!           each kind 24, entries 8, root 8
//! ```
//!
//! Numbers have the byte order and word size of the machine that wrote the file. Only files of
//! 64-bit little-endian machines are supported.

/// Length of a page's header.
const HEADER: usize = 16;
/// End of the fields of a meta page.
pub(super) const META_END: usize = HEADER + 136;
const MAGIC: u32 = 0xbeef_c0de;
/// The only released version of the format; 999 is LMDB's development version.
const VERSION: u32 = 1;
const TABLE_BYTES: usize = 48;
/// The root of a table without entries.
const NO_PAGE: u64 = u64::MAX;
/// Length of a node before its key.
const NODE_HEADER: usize = 8;

const BRANCH: u16 = 1;
const LEAF: u16 = 2;
const OVERFLOW: u16 = 4;
/// The flag bits that determine the kind of a page.
const PAGE_FORMS: u16 = 0x2f;

/// Flags of a node: the value is on overflow pages, is a table, or is several values.
const BIG: u16 = 1;
pub(super) const TABLE: u16 = 2;
pub(super) const SEVERAL: u16 = 4;

/// Reads `N` bytes at an offset; zeros if the slice is too short.
fn bytes<const N: usize>(from: &[u8], at: usize) -> [u8; N] {
    from.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or([0; N])
}

fn u16_at(from: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes(from, at))
}

fn u32_at(from: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes(from, at))
}

fn u64_at(from: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes(from, at))
}

/// The root of a table and the number of its entries.
#[derive(Clone, Copy, Debug)]
pub(super) struct TableRoot {
    /// The number of the root's page; `None` if the table is empty.
    pub(super) page: Option<u64>,
    pub(super) entries: u64,
}

impl TableRoot {
    /// Reads a table. Returns `None` if the bytes are too few.
    pub(super) fn read(table: &[u8]) -> Option<Self> {
        let table = table.get(..TABLE_BYTES)?;
        let page = u64_at(table, 40);
        Some(Self { page: (page != NO_PAGE).then_some(page), entries: u64_at(table, 32) })
    }
}

/// The content of a meta page.
#[derive(Clone, Copy, Debug)]
pub(super) struct MetaPage {
    pub(super) page_bytes: usize,
    pub(super) transaction: u64,
    /// The number of the last page that is used.
    pub(super) last_page: u64,
    /// The table that contains the other tables.
    pub(super) tables: TableRoot,
}

impl MetaPage {
    /// Reads a meta page, or returns the reason why the page is no meta page.
    pub(super) fn read(page: &[u8; META_END]) -> Result<Self, String> {
        let fields = &page[HEADER..];
        match u32_at(fields, 0) {
            MAGIC => {}
            magic if magic.swap_bytes() == MAGIC => {
                return Err("an LMDB file of a machine that writes the high byte first".into());
            }
            _ => return Err("no LMDB file".into()),
        }
        let version = u32_at(fields, 4);
        if version != VERSION {
            return Err(format!("an LMDB file of format {version}; {VERSION} is read"));
        }
        let page_bytes = u32_at(fields, 24) as usize;
        if !page_bytes.is_power_of_two() || !(512..=65_536).contains(&page_bytes) {
            return Err(format!("an LMDB file with pages of {page_bytes} bytes, so it is damaged"));
        }
        let tables = TableRoot::read(&fields[24 + TABLE_BYTES..])
            .ok_or_else(|| "an LMDB file that ends in its first page".to_owned())?;
        let (last_page, transaction) = (u64_at(fields, 120), u64_at(fields, 128));
        Ok(Self { page_bytes, transaction, last_page, tables })
    }
}

/// A node of a leaf.
#[derive(Clone, Copy, Debug)]
pub(super) struct LeafNode<'a> {
    pub(super) key: &'a [u8],
    /// Length of the value.
    pub(super) len: usize,
    /// [`TABLE`], [`SEVERAL`], or neither.
    pub(super) flags: u16,
    pub(super) value: NodeValue<'a>,
}

/// The location of a node's value.
#[derive(Clone, Copy, Debug)]
pub(super) enum NodeValue<'a> {
    Here(&'a [u8]),
    /// On overflow pages, from the page with this number on.
    Overflow(u64),
}

/// The kind of a tree page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TreePageForm {
    Branch,
    Leaf,
}

/// A page of a tree.
pub(super) struct TreePage {
    bytes: Vec<u8>,
    pub(super) form: TreePageForm,
    /// The number of nodes.
    pub(super) count: usize,
}

impl TreePage {
    /// Reads the page with this number. Returns `None` if the bytes are not a tree page with this
    /// number.
    pub(super) fn read(bytes: Vec<u8>, number: u64) -> Option<Self> {
        if u64_at(&bytes, 0) != number {
            return None;
        }
        let form = match u16_at(&bytes, 10) & PAGE_FORMS {
            BRANCH => TreePageForm::Branch,
            LEAF => TreePageForm::Leaf,
            _ => return None,
        };
        let (lower, upper) = (usize::from(u16_at(&bytes, 12)), usize::from(u16_at(&bytes, 14)));
        if lower < HEADER || lower > upper || upper > bytes.len() {
            return None;
        }
        Some(Self { bytes, form, count: (lower - HEADER) / 2 })
    }

    /// Returns a node's header, its key, and the bytes after the key. Returns `None` if the node is
    /// not within the page.
    fn node(&self, index: usize) -> Option<(&[u8], &[u8], &[u8])> {
        let at = usize::from(u16_at(&self.bytes, HEADER + 2 * index));
        let (header, rest) = self.bytes.get(at..)?.split_at_checked(NODE_HEADER)?;
        let (key, rest) = rest.split_at_checked(u16_at(header, 6).into())?;
        (at >= HEADER && index < self.count).then_some((header, key, rest))
    }

    /// Returns a node of a branch: the lowest key of the child, and the number of the child's page.
    /// The key of the first node is not meaningful and counts as lower than all others.
    pub(super) fn child(&self, index: usize) -> Option<(&[u8], u64)> {
        let (header, key, _) = self.node(index)?;
        let low = u64::from(u32_at(header, 0));
        Some((key, low | u64::from(u16_at(header, 4)) << 32))
    }

    /// Returns a node of a leaf.
    pub(super) fn leaf(&self, index: usize) -> Option<LeafNode<'_>> {
        let (header, key, rest) = self.node(index)?;
        let (len, flags) = (u32_at(header, 0) as usize, u16_at(header, 4));
        let value = if flags & BIG == 0 {
            NodeValue::Here(rest.get(..len)?)
        } else {
            NodeValue::Overflow(u64::from_le_bytes(*rest.first_chunk()?))
        };
        Some(LeafNode { key, len, flags: flags & (TABLE | SEVERAL), value })
    }
}

/// Returns the file offset of a value of `len` bytes on overflow pages. Returns `None` unless
/// `first` is the header of page `number` and states enough overflow pages.
pub(super) fn overflow_value(
    first: &[u8; HEADER],
    number: u64,
    len: usize,
    page_bytes: usize,
) -> Option<u64> {
    let is_overflow = u64_at(first, 0) == number && u16_at(first, 10) & PAGE_FORMS == OVERFLOW;
    let room = u64::from(u32_at(first, 12)).checked_mul(page_bytes as u64)?;
    let is_within = room >= len as u64 + HEADER as u64;
    let at = number.checked_mul(page_bytes as u64)?.checked_add(HEADER as u64)?;
    (is_overflow && is_within).then_some(at)
}
