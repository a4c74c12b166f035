//! The table of Status' mail server in PostgreSQL, and its queries: by bloom filter and by topic.
//! Names and columns are from the mail server's migrations. The table's key has consisted of time,
//! hash and topic since 2019.

use std::error::Error;
use std::fmt::Write as _;
use std::pin::pin;

use bytes::{BufMut as _, BytesMut};
use futures_util::TryStreamExt as _;
use hark_codec::whisper::{Bloom, Envelope};
use tokio::runtime::Runtime;
use tokio_postgres::Client;
use tokio_postgres::binary_copy::BinaryCopyInWriter;
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};

use super::answer::AnswerBuffer;
use super::envelopes::EnvelopeSource;
use super::store::{StoreQuestion, WantedTopics};
use super::ways::EnvelopeAsker;
use crate::meter::ProgressMeter;

const TABLE: &str = "CREATE TABLE envelopes (id bytea NOT NULL UNIQUE, data bytea NOT NULL, \
                     topic bytea NOT NULL, bloom bit(512) NOT NULL)";
const INDICES: &str = "CREATE INDEX id_bloom_idx ON envelopes (id DESC, bloom);
                       CREATE INDEX id_topic_idx ON envelopes (id DESC, topic)";
const COPY: &str = "COPY envelopes (id, data, topic, bloom) FROM STDIN (FORMAT binary)";
const TYPES: [Type; 4] = [Type::BYTEA, Type::BYTEA, Type::BYTEA, Type::BIT];
/// Size of a key in bytes: time, hash, topic.
const KEY_BYTES: usize = 4 + 32 + 4;
/// Number of envelopes between two updates of the meter.
const LOOK_EVERY: u64 = 1_024;

/// Bits to be copied into a column of bits.
#[derive(Debug)]
struct BitsInput<'a>(&'a [u8]);

impl ToSql for BitsInput<'_> {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        // PostgreSQL's binary format of a bit string begins with the number of bits.
        out.put_i32(i32::try_from(self.0.len() * 8)?);
        out.extend_from_slice(self.0);
        Ok(IsNull::No)
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::BIT
    }

    to_sql_checked!();
}

/// Returns the lowest key of a time.
fn first_key(time_s: u32) -> [u8; KEY_BYTES] {
    let mut key = [0; KEY_BYTES];
    key[..4].copy_from_slice(&time_s.to_be_bytes());
    key
}

/// Creates the table, copies all envelopes and creates the indices. Returns the number of
/// envelopes.
pub(super) async fn fill(client: &Client, envelopes: &mut EnvelopeSource) -> anyhow::Result<u64> {
    client.batch_execute(TABLE).await?;
    let writer = BinaryCopyInWriter::new(client.copy_in(COPY).await?, &TYPES);
    let mut writer = Box::pin(writer);
    let mut meter = ProgressMeter::start("the mail server's table", envelopes.count());
    let (mut rlp, mut done) = (Vec::new(), 0_u64);
    while envelopes.next(&mut rlp)? {
        let envelope = Envelope::parse(&rlp)?;
        let mut id = first_key(envelope.sent());
        id[4..36].copy_from_slice(&envelope.hash());
        id[36..].copy_from_slice(&envelope.topic);
        let bloom = Bloom::of_topic(envelope.topic);
        let row: [&(dyn ToSql + Sync); 4] =
            [&&id[..], &&rlp[..], &&envelope.topic[..], &BitsInput(&bloom.0)];
        writer.as_mut().write(&row).await?;
        done += 1;
        if done.is_multiple_of(LOOK_EVERY) {
            meter.at(done);
        }
    }
    meter.finish();
    let rows = writer.as_mut().finish().await?;
    // More memory than the default makes building the indices faster.
    client.batch_execute("SET maintenance_work_mem = '256MB'").await?;
    client.batch_execute(INDICES).await?;
    Ok(rows)
}

/// A connection to the table.
pub(super) struct TableAsker {
    pub(super) runtime: Runtime,
    pub(super) client: Client,
}

/// Returns the statement for a question. The first two parameters of the statement are the lowest
/// key and the key after the highest key. For questions by topic, the third parameter is the list
/// of topics.
fn statement(question: &StoreQuestion) -> String {
    let mut sql = String::from("SELECT id, data FROM envelopes WHERE id >= $1 AND id < $2 AND ");
    match &question.wanted {
        WantedTopics::Topics(_) => sql.push_str("topic = any($3)"),
        WantedTopics::Bloom(bloom) => {
            sql.push_str("bloom & b'");
            for byte in bloom.0 {
                // Writing to a String cannot fail.
                let _ = write!(sql, "{byte:08b}");
            }
            sql.push_str("'::bit(512) = bloom");
        }
    }
    sql.push_str(if question.newest_first { " ORDER BY id DESC" } else { " ORDER BY id" });
    if let Some(limit) = question.limit {
        // Writing to a String cannot fail.
        let _ = write!(sql, " LIMIT {limit}");
    }
    sql
}

impl EnvelopeAsker for TableAsker {
    fn ask(&mut self, question: &StoreQuestion, answer: &mut AnswerBuffer) -> anyhow::Result<()> {
        let (from, to) = question.times_s;
        let (first, behind) = (first_key(from), first_key(to.saturating_add(1)));
        let (first, behind) = (&first[..], &behind[..]);
        let topics: Vec<&[u8]> = match &question.wanted {
            WantedTopics::Topics(topics) => topics.iter().map(|topic| &topic[..]).collect(),
            WantedTopics::Bloom(_) => Vec::new(),
        };
        let mut values: Vec<(&(dyn ToSql + Sync), Type)> =
            vec![(&first, Type::BYTEA), (&behind, Type::BYTEA)];
        if matches!(question.wanted, WantedTopics::Topics(_)) {
            values.push((&topics, Type::BYTEA_ARRAY));
        }
        let sql = statement(question);
        self.runtime.block_on(async {
            let mut rows = pin!(self.client.query_typed_raw(&sql, values).await?);
            while let Some(row) = rows.try_next().await? {
                answer.push(row.try_get(1)?);
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_become_the_mail_servers_statements() {
        let question = |wanted, newest_first, limit| StoreQuestion {
            wanted,
            times_s: (1, 2),
            newest_first,
            limit,
        };
        let by_topics = question(WantedTopics::Topics(vec![[1; 4]]), true, None);
        assert_eq!(
            statement(&by_topics),
            "SELECT id, data FROM envelopes WHERE id >= $1 AND id < $2 AND topic = any($3) \
             ORDER BY id DESC"
        );
        let mut bloom = Bloom::default();
        (bloom.0[0], bloom.0[63]) = (0x80, 1);
        let by_bloom = question(WantedTopics::Bloom(Box::new(bloom)), false, Some(5));
        let zeros = "0".repeat(510);
        assert_eq!(
            statement(&by_bloom),
            format!(
                "SELECT id, data FROM envelopes WHERE id >= $1 AND id < $2 AND \
                 bloom & b'1{zeros}1'::bit(512) = bloom ORDER BY id LIMIT 5"
            )
        );
        assert_eq!(first_key(0x0102_0304)[..5], [1, 2, 3, 4, 0]);
    }
}
