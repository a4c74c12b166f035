//! A walk that begins before its posting lists are looked up.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::task::Poll;

use hark_codec::record::{Id, Record};

use super::cursor::SourceWalk;
use super::opening::Opening;
use super::prepared::PreparedQuery;
use super::set::Set;
use super::source::Source;
use super::walk::{AnyWalk, WalkEnd, WalkStep};

/// Begins a walk and looks up its lists as far as `work` allows. Returns `None` if nothing in the
/// source can match. The lookups are charged as rows: their number is added to `visited`, and is
/// also part of [`AnyWalk::visited`].
pub(super) fn walk<S: Source>(
    source: Arc<S>,
    query: &Arc<PreparedQuery>,
    work: &mut u64,
    visited: &mut u64,
) -> Option<Box<dyn AnyWalk>> {
    let (query, mut opening) = (Arc::clone(query), Opening::new(&*source, query));
    let opened = opening.look_up(&*source, &query, work);
    *visited += opening.visited();
    match opened {
        Poll::Ready(None) => None,
        Poll::Ready(Some(opened)) => Some(Box::new(SourceWalk::new(source, query, opened))),
        Poll::Pending => Some(Box::new(OpeningWalk { source, query, opening, walk: None })),
    }
}

/// A walk that began before its lists were known.
struct OpeningWalk<S: Source> {
    source: Arc<S>,
    query: Arc<PreparedQuery>,
    opening: Opening<S>,
    walk: Option<SourceWalk<S>>,
}

impl<S: Source> AnyWalk for OpeningWalk<S> {
    fn advance(&mut self, work: &mut u64) -> WalkStep {
        if self.walk.is_none() {
            if *work == 0 {
                return WalkStep::Paused;
            }
            match self.opening.look_up(&*self.source, &self.query, work) {
                Poll::Pending => return WalkStep::Paused,
                Poll::Ready(None) => return WalkStep::End,
                Poll::Ready(Some(opened)) => {
                    let (source, query) = (Arc::clone(&self.source), Arc::clone(&self.query));
                    self.walk = Some(SourceWalk::new(source, query, opened));
                }
            }
        }
        self.walk.as_mut().map_or(WalkStep::End, |walk| walk.advance(work))
    }

    fn run(
        &mut self,
        work: &mut u64,
        bound: u64,
        wanted: &mut usize,
        sink: &mut dyn FnMut(&Record<'_>) -> ControlFlow<()>,
    ) -> WalkEnd {
        // A caller runs only a walk that is at a match, so `walk` is known.
        self.walk.as_mut().map_or(WalkEnd::End, |walk| walk.run(work, bound, wanted, sink))
    }

    fn time(&self) -> u64 {
        self.walk.as_ref().map_or(0, AnyWalk::time)
    }

    fn id(&self) -> Option<Id> {
        self.walk.as_ref().and_then(AnyWalk::id)
    }

    fn visited(&self) -> u64 {
        self.walk.as_ref().map_or_else(|| self.opening.visited(), AnyWalk::visited)
    }

    fn damaged(&self) -> u64 {
        self.walk.as_ref().map_or(0, AnyWalk::damaged)
    }

    fn driver(&self) -> Option<(u64, Set)> {
        self.walk.as_ref().and_then(AnyWalk::driver)
    }

    fn bytes(&self) -> usize {
        self.walk.as_ref().map_or_else(|| self.opening.bytes(&self.source), AnyWalk::bytes)
    }
}
