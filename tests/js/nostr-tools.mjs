// Uses nostr-tools as applications do, with the relay whose address is the first argument:
// publishes, subscribes to stored and to later events, and counts. The exit code reports a failure.
// tests/nostr.rs runs this script.

import assert from 'node:assert/strict'
import { webcrypto } from 'node:crypto'
import WebSocket from 'ws'

// Node 18 has no global of this name.
globalThis.crypto ??= webcrypto
const { finalizeEvent, generateSecretKey, getPublicKey, verifyEvent } = await import('nostr-tools/pure')
const { Relay, useWebSocketImplementation } = await import('nostr-tools/relay')
useWebSocketImplementation(WebSocket)

const url = process.argv[2]
assert.ok(url, 'usage: node nostr-tools.mjs ws://127.0.0.1:PORT')
setTimeout(() => { throw new Error('no end after 30 s') }, 30_000).unref()

const secret = generateSecretKey()
const author = getPublicKey(secret)
const start = Math.floor(Date.now() / 1000) - 100
const note = (n, content) =>
  finalizeEvent({ kind: 1, created_at: start + n, tags: [['t', 'hark'], ['n', `${n}`]], content }, secret)

// The id depends on how JSON.stringify escapes these characters, so the relay must return them
// unchanged.
const odd = 'quotes " \\ / \n\r\t\b\f \u0000\u0001\u001f \u007f \u2028\u2029 é 🤙 \ufffe'
const notes = [note(0, 'first'), note(1, odd), note(2, 'third')]

/** Collects the events of a subscription up to EOSE, and then each later event. */
function listen(relay, filters) {
  const stored = []
  const live = []
  let wake = () => {}
  const eose = new Promise((resolve, reject) => {
    const sub = relay.subscribe(filters, {
      onevent(event) { (sub.eosed ? live : stored).push(event); wake() },
      oneose: resolve,
      onclose: reason => reject(new Error(reason)),
      oninvalidevent: event => reject(new Error(`invalid: ${JSON.stringify(event)}`)),
      eoseTimeout: 20_000,
    })
  })
  eose.catch(() => {})
  const news = async count => {
    while (live.length < count) await new Promise(resolve => { wake = resolve })
    return live
  }
  return { stored, eose, news }
}

const plain = event => JSON.parse(JSON.stringify(event))

const relay = await Relay.connect(url)
for (const event of notes) assert.equal(await relay.publish(event), '')
// Publishing a stored event again counts as a success (NIP-01).
assert.match(await relay.publish(notes[0]), /^duplicate:/)
// The id does not match the changed content.
await assert.rejects(relay.publish({ ...plain(note(9, 'mine')), content: 'forged' }), /invalid:/)

const filter = { kinds: [1], authors: [author], '#t': ['hark'] }
const other = await Relay.connect(url)
const heard = listen(other, [filter])
await heard.eose
assert.deepEqual(heard.stored.map(plain), [...notes].reverse().map(plain), 'newest first, all equal')
for (const event of heard.stored) assert.ok(verifyEvent(plain(event)))

const late = note(3, 'live')
await relay.publish(late)
assert.deepEqual((await heard.news(1)).map(plain), [plain(late)])

const limited = listen(other, [{ ...filter, limit: 2 }])
await limited.eose
assert.deepEqual(limited.stored.map(event => event.id), [late.id, notes[2].id])

assert.equal(await other.count([filter], {}), 4)
assert.equal(await other.count([{ ...filter, until: start }, { ids: [late.id] }], {}), 2)
assert.equal(await other.count([{ authors: ['00'.repeat(32)] }], {}), 0)

// A deleted event is not returned, and cannot be published again.
const deletion = finalizeEvent(
  { kind: 5, created_at: start + 4, tags: [['e', notes[1].id]], content: '' }, secret)
await relay.publish(deletion)
assert.equal(await other.count([filter], {}), 3)
await assert.rejects(relay.publish(notes[1]), /^(Error: )?(blocked|invalid|deleted)/)

relay.close()
other.close()
console.log(JSON.stringify({ author, ids: [...notes, late].map(event => event.id) }))
process.exit(0)
