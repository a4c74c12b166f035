//! The tables of an LMDB file in their state after one transaction.
//!
//! A table is a B+tree. Keys of the tables read here are numbers of 8 bytes, except in the table of
//! tables: there keys are names.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::ops::ControlFlow;

use super::page::{
    LeafNode, MetaPage, NodeValue, SEVERAL, TABLE, TableRoot, TreePage, TreePageForm,
    overflow_value,
};
use super::{LmdbFault, LmdbFile};

/// Maximum depth of a tree, as in LMDB.
const DEPTH_MAX: usize = 32;
/// Maximum number of damaged pages to remember, so that each page is counted once.
const DAMAGED_MAX: usize = 10_000;

/// A value, unless it is longer than the requested maximum.
#[derive(Debug, PartialEq, Eq)]
pub(in super::super) enum LmdbValue {
    Bytes(Vec<u8>),
    /// The length of a value above the maximum.
    TooLong(usize),
    /// The reason why the value cannot be read.
    Damaged(String),
}

/// Unreadable pages, with a description of each fault. The entries below these pages are lost.
#[derive(Debug, Default)]
pub(in super::super) struct DamagedPages(BTreeMap<u64, String>);

impl DamagedPages {
    fn add(&mut self, page: u64, words: String) {
        if self.0.len() < DAMAGED_MAX {
            self.0.entry(page).or_insert(words);
        }
    }

    pub(in super::super) fn append(&mut self, more: Self) {
        for (page, words) in more.0 {
            self.add(page, words);
        }
    }

    /// The number of pages.
    pub(in super::super) fn count(&self) -> u64 {
        self.0.len() as u64
    }

    /// Returns the description of the first damaged page, in file order.
    pub(in super::super) fn first(&self) -> &str {
        self.0.values().next().map_or("", |words| words)
    }
}

/// A table whose keys are numbers.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct LmdbTable(TableRoot);

impl LmdbTable {
    /// The number of entries.
    pub(in super::super) fn entries(&self) -> u64 {
        self.0.entries
    }
}

/// One snapshot of a file. Data from a snapshot is valid only if [`LmdbFile::read`] returns it to
/// the caller.
pub(in super::super) struct LmdbSnapshot<'a> {
    file: &'a LmdbFile,
    tables: TableRoot,
    last_page: u64,
}

/// The state of a walk over a table's entries.
struct TableWalk<'v> {
    after: u64,
    /// Number of pages that the walk may still read. A tree has at most as many pages as the file.
    pages_left: u64,
    damaged: DamagedPages,
    visit: &'v mut dyn FnMut(u64, LmdbValue) -> ControlFlow<()>,
    value_bytes_max: usize,
}

impl<'a> LmdbSnapshot<'a> {
    pub(super) fn new(file: &'a LmdbFile, meta: &MetaPage) -> Self {
        Self { file, tables: meta.tables, last_page: meta.last_page }
    }

    /// Returns the table with this name; `None` if no such table exists.
    pub(in super::super) fn table(&self, name: &str) -> Result<Option<LmdbTable>, LmdbFault> {
        self.find(self.tables, &|key| key.cmp(name.as_bytes()), &|node| {
            let table = match node.value {
                NodeValue::Here(bytes) if node.flags == TABLE => TableRoot::read(bytes),
                _ => None,
            };
            table.map(LmdbTable).ok_or_else(|| damage(&format!("`{name}` is no table")))
        })
    }

    /// Returns the value of a key; `None` if the table lacks the key.
    pub(in super::super) fn value(
        &self,
        table: LmdbTable,
        key: u64,
        value_bytes_max: usize,
    ) -> Result<Option<LmdbValue>, LmdbFault> {
        let compare = |found: &[u8]| number(found).unwrap_or_default().cmp(&key);
        self.find(table.0, &compare, &|node| self.node_value(node, value_bytes_max))
    }

    /// Returns the highest key of a table; 0 if the table is empty.
    pub(in super::super) fn last_key(&self, table: LmdbTable) -> Result<u64, LmdbFault> {
        let Some(mut at) = table.0.page else { return Ok(0) };
        for _ in 0..DEPTH_MAX {
            let page = self.tree_page(at)?;
            let last = page.count.checked_sub(1);
            match page.form {
                TreePageForm::Branch => {
                    at = last.and_then(|last| page.child(last)).ok_or_else(|| no_node(at))?.1;
                }
                TreePageForm::Leaf => {
                    let node = last.and_then(|last| page.leaf(last));
                    return node.and_then(|node| number(node.key)).ok_or_else(|| no_node(at));
                }
            }
        }
        Err(damage("a tree is too deep"))
    }

    /// Passes the entries with a key above `after` to `visit`, in key order, until `visit` breaks.
    /// Damaged pages are skipped and returned.
    pub(in super::super) fn walk(
        &self,
        table: LmdbTable,
        after: u64,
        value_bytes_max: usize,
        visit: &mut dyn FnMut(u64, LmdbValue) -> ControlFlow<()>,
    ) -> Result<DamagedPages, LmdbFault> {
        let (pages_left, damaged) = (self.file.pages()?, DamagedPages::default());
        let mut walk = TableWalk { after, pages_left, damaged, visit, value_bytes_max };
        if let Some(root) = table.0.page {
            let _ = self.walk_page(root, 0, &mut walk)?;
        }
        Ok(walk.damaged)
    }

    /// Walks over one page and its descendants. Damage to the page ends the walk over this page
    /// only.
    fn walk_page(
        &self,
        at: u64,
        depth: usize,
        walk: &mut TableWalk<'_>,
    ) -> Result<ControlFlow<()>, LmdbFault> {
        let page = match self.tree_page(at) {
            _ if walk.pages_left == 0 => Err(damage("its pages form a cycle")),
            _ if depth == DEPTH_MAX => Err(damage("a tree is too deep")),
            page => page,
        };
        walk.pages_left = walk.pages_left.saturating_sub(1);
        let walked = page.and_then(|page| match page.form {
            TreePageForm::Branch => self.walk_branch(&page, at, depth, walk),
            TreePageForm::Leaf => self.walk_leaf(&page, at, walk),
        });
        match walked {
            Err(LmdbFault::Damage(words)) => {
                walk.damaged.add(at, words);
                Ok(ControlFlow::Continue(()))
            }
            walked => walked,
        }
    }

    fn walk_branch(
        &self,
        page: &TreePage,
        at: u64,
        depth: usize,
        walk: &mut TableWalk<'_>,
    ) -> Result<ControlFlow<()>, LmdbFault> {
        for index in 0..page.count {
            let (_, child) = page.child(index).ok_or_else(|| no_node(at))?;
            // All keys of a child are below the first key of the next child.
            let next = page.child(index + 1).and_then(|(key, _)| number(key));
            if next.is_some_and(|next| next <= walk.after.saturating_add(1)) {
                continue;
            }
            if self.walk_page(child, depth + 1, walk)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn walk_leaf(
        &self,
        page: &TreePage,
        at: u64,
        walk: &mut TableWalk<'_>,
    ) -> Result<ControlFlow<()>, LmdbFault> {
        for index in 0..page.count {
            let node = page.leaf(index).ok_or_else(|| no_node(at))?;
            let key = number(node.key).ok_or_else(|| no_node(at))?;
            // Only increasing keys are accepted, so no entry is visited twice, even in a damaged
            // tree.
            if key <= walk.after {
                continue;
            }
            walk.after = key;
            let value = self.node_value(&node, walk.value_bytes_max)?;
            if (walk.visit)(key, value).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Descends to the node whose key is equal to the wanted key. `compare` compares a key with the
    /// wanted key.
    fn find<T>(
        &self,
        table: TableRoot,
        compare: &dyn Fn(&[u8]) -> Ordering,
        found: &dyn Fn(&LeafNode<'_>) -> Result<T, LmdbFault>,
    ) -> Result<Option<T>, LmdbFault> {
        let Some(mut at) = table.page else { return Ok(None) };
        for _ in 0..DEPTH_MAX {
            let page = self.tree_page(at)?;
            if page.form == TreePageForm::Leaf {
                for index in 0..page.count {
                    let node = page.leaf(index).ok_or_else(|| no_node(at))?;
                    if compare(node.key).is_eq() {
                        return found(&node).map(Some);
                    }
                }
                return Ok(None);
            }
            let mut next = None;
            for index in 0..page.count {
                let (key, child) = page.child(index).ok_or_else(|| no_node(at))?;
                if index > 0 && compare(key).is_gt() {
                    break;
                }
                next = Some(child);
            }
            at = next.ok_or_else(|| no_node(at))?;
        }
        Err(damage("a tree is too deep"))
    }

    /// Reads the value of a node. Damage is returned as [`LmdbValue::Damaged`]; every error comes
    /// from the operating system.
    fn node_value(&self, node: &LeafNode<'_>, bytes_max: usize) -> Result<LmdbValue, LmdbFault> {
        let read = match node.value {
            _ if node.flags & (TABLE | SEVERAL) != 0 => Err(damage("an entry has other values")),
            _ if node.len > bytes_max => Ok(LmdbValue::TooLong(node.len)),
            NodeValue::Here(bytes) => Ok(LmdbValue::Bytes(bytes.to_vec())),
            NodeValue::Overflow(page) => self.overflow(page, node.len).map(LmdbValue::Bytes),
        };
        match read {
            Err(LmdbFault::Damage(words)) => Ok(LmdbValue::Damaged(words)),
            read => read,
        }
    }

    fn overflow(&self, number: u64, len: usize) -> Result<Vec<u8>, LmdbFault> {
        let mut first = [0; 16];
        self.file.bytes_at(&mut first, self.page_offset(number)?)?;
        let at = overflow_value(&first, number, len, self.file.page_bytes)
            .ok_or_else(|| damage(&format!("page {number} does not have the expected value")))?;
        let mut value = vec![0; len];
        self.file.bytes_at(&mut value, at)?;
        Ok(value)
    }

    fn tree_page(&self, number: u64) -> Result<TreePage, LmdbFault> {
        let at = self.page_offset(number)?;
        let mut bytes = vec![0; self.file.page_bytes];
        self.file.bytes_at(&mut bytes, at).map_err(|fault| match fault {
            LmdbFault::Damage(words) => damage(&format!("page {number}: {words}")),
            fault @ LmdbFault::File(_) => fault,
        })?;
        TreePage::read(bytes, number)
            .ok_or_else(|| damage(&format!("page {number} is no page of a tree")))
    }

    /// Returns the offset of a page in the file. Pages 0 and 1 are the meta pages.
    fn page_offset(&self, number: u64) -> Result<u64, LmdbFault> {
        let is_used = (2..=self.last_page).contains(&number);
        let at = number.checked_mul(self.file.page_bytes as u64).filter(|_| is_used);
        at.ok_or_else(|| damage(&format!("a page names page {number}, which is not there")))
    }
}

/// Reads a key that is a number.
fn number(key: &[u8]) -> Option<u64> {
    key.try_into().ok().map(u64::from_le_bytes)
}

fn damage(words: &str) -> LmdbFault {
    LmdbFault::Damage(words.to_owned())
}

fn no_node(page: u64) -> LmdbFault {
    damage(&format!("page {page} has an entry beyond its bounds"))
}
