//! A function that is called after each change of the bans and allows in force.

use std::sync::OnceLock;

/// The function, once it is set.
#[derive(Default)]
pub(super) struct ChangeFollower(OnceLock<Box<dyn Fn() + Send + Sync>>);

impl std::fmt::Debug for ChangeFollower {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("ChangeFollower").field(&self.0.get().is_some()).finish()
    }
}

impl ChangeFollower {
    /// Sets the function. Later calls have no effect.
    pub(super) fn set(&self, follower: Box<dyn Fn() + Send + Sync>) {
        let _ = self.0.set(follower);
    }

    pub(super) fn call(&self) {
        if let Some(follower) = self.0.get() {
            follower();
        }
    }
}
