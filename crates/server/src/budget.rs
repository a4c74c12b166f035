//! Bounds the memory that the server uses for clients, in total and per address.
//!
//! The memory of one connection has its own bounds. A budget bounds the sum over many connections.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::address::ClientAddress;

/// One address may hold at most the budget divided by this number.
const OF_ADDRESS: usize = 4;

/// The bytes in use, in total and per address.
#[derive(Debug, Default)]
pub(crate) struct Budget(Mutex<BudgetUse>);

#[derive(Debug, Default)]
struct BudgetUse {
    all: usize,
    /// Bytes by address. An address without bytes has no entry.
    of: HashMap<ClientAddress, usize>,
}

/// Bytes of a budget, released on drop.
#[derive(Debug)]
pub(crate) struct BudgetShare {
    budget: Arc<Budget>,
    of: Option<ClientAddress>,
    bytes: usize,
}

impl Budget {
    /// Creates an empty share for a connection of the address `of`. If `of` is `None`, the bytes of
    /// the share count only towards the total.
    pub(crate) fn share(self: &Arc<Self>, of: Option<ClientAddress>) -> BudgetShare {
        BudgetShare { budget: Arc::clone(self), of, bytes: 0 }
    }

    /// The bytes in use now, of all shares.
    pub(crate) fn bytes(&self) -> usize {
        self.0.lock().all
    }
}

impl BudgetShare {
    /// The bytes of this share.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Changes the share to `bytes`. Shrinking always succeeds. Growing fails if all shares
    /// together would exceed `max`, or if the shares of this address would exceed a quarter of
    /// `max`; then the result is false, and nothing changes.
    pub(crate) fn resize(&mut self, bytes: usize, max: usize) -> bool {
        let mut held = self.budget.0.lock();
        let all = held.all - self.bytes + bytes;
        let of_address = self.of.as_ref().map(|of| {
            let before = held.of.get(of).copied().unwrap_or(0);
            (*of, before - self.bytes + bytes)
        });
        let is_too_much =
            all > max || of_address.is_some_and(|(_, bytes)| bytes > max / OF_ADDRESS);
        if bytes > self.bytes && is_too_much {
            return false;
        }
        held.all = all;
        match of_address {
            Some((of, 0)) => drop(held.of.remove(&of)),
            Some((of, bytes)) => drop(held.of.insert(of, bytes)),
            None => {}
        }
        self.bytes = bytes;
        true
    }
}

impl Drop for BudgetShare {
    fn drop(&mut self) {
        self.resize(0, 0);
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    fn address(last: u8) -> ClientAddress {
        IpAddr::from([192, 0, 2, last]).into()
    }

    #[test]
    fn an_address_has_a_quarter_and_all_together_have_no_more_than_there_is() {
        let budget = Arc::<Budget>::default();
        let mut shares: Vec<BudgetShare> = (0..5).map(|n| budget.share(Some(address(n)))).collect();
        assert!(!shares[0].resize(26, 100), "more than a quarter");
        assert_eq!((shares[0].bytes(), budget.bytes()), (0, 0));
        shares[..4].iter_mut().for_each(|share| assert!(share.resize(25, 100)));
        assert!(!shares[4].resize(1, 100), "there is nothing left");
        assert!(shares[0].resize(20, 10), "shrinking is always possible");
        assert!(shares[4].resize(5, 100));
        drop(shares);
        assert_eq!(budget.bytes(), 0);
        assert!(budget.0.lock().of.is_empty());
    }

    #[test]
    fn connections_of_no_address_share_all() {
        let budget = Arc::<Budget>::default();
        let mut one = budget.share(None);
        assert!(one.resize(100, 100) && !budget.share(None).resize(1, 100));
    }
}
