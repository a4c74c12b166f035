// Uses nostr-tools as applications do, with the relay whose address is the first argument:
// authenticates, sends, reads and deletes gift wraps (NIP-17, NIP-59), and is refused the gift
// wraps of others. The exit code reports a failure. tests/nostr.rs runs this script.

import assert from 'node:assert/strict'
import { webcrypto } from 'node:crypto'
import WebSocket from 'ws'

// Node 18 has no global of this name.
globalThis.crypto ??= webcrypto
const { finalizeEvent, generateSecretKey, getPublicKey } = await import('nostr-tools/pure')
const { Relay, useWebSocketImplementation } = await import('nostr-tools/relay')
const { unwrapEvent, wrapEvent } = await import('nostr-tools/nip59')
useWebSocketImplementation(WebSocket)

const url = process.argv[2]
assert.ok(url, 'usage: node nostr-tools-auth.mjs ws://127.0.0.1:PORT')
setTimeout(() => { throw new Error('no end after 60 s') }, 60_000).unref()

const [alice, bob, eve] = [1, 2, 3].map(generateSecretKey)
const now = () => Math.floor(Date.now() / 1000)

/** Events up to EOSE, or the reason of CLOSED. */
const ask = (relay, filters) => new Promise(resolve => {
  const events = []
  const sub = relay.subscribe(filters, {
    onevent: event => events.push(event),
    oneose() { resolve({ events }); sub.close() },
    onclose: reason => resolve({ reason }),
    eoseTimeout: 50_000,
  })
})

/** A connection, and one that has shown whose it is. */
const connect = () => Relay.connect(url)
async function as(secret) {
  const relay = await connect()
  while (!relay.challenge) await new Promise(resolve => setTimeout(resolve, 5))
  await relay.auth(async template => finalizeEvent(template, secret))
  return relay
}

const sender = await connect()
const wrap = wrapEvent({ kind: 14, content: 'only for bob', tags: [] }, alice, getPublicKey(bob))
await sender.publish(wrap)
const wraps = [{ kinds: [1059], '#p': [getPublicKey(bob)] }]

// A client without authentication, and then a stranger.
assert.match((await ask(sender, wraps)).reason, /^auth-required: /)
await assert.rejects(sender.count(wraps, {}), /auth-required: /)
const stranger = await as(eve)
assert.deepEqual((await ask(stranger, wraps)).events, [])
assert.deepEqual((await ask(stranger, [{ ids: [wrap.id] }])).events, [])
assert.equal(await stranger.count(wraps, {}), 0)

const recipient = await as(bob)
const { events } = await ask(recipient, wraps)
assert.deepEqual(events.map(event => event.id), [wrap.id])
assert.equal(unwrapEvent(events[0], bob).content, 'only for bob')
assert.equal(await recipient.count(wraps, {}), 1)

// A stranger's deletion has no effect. The recipient's deletion deletes the wrap.
const deletion = secret => finalizeEvent(
  { kind: 5, created_at: now(), tags: [['e', wrap.id], ['k', '1059']], content: '' }, secret)
await stranger.publish(deletion(eve))
assert.equal(await recipient.count(wraps, {}), 1)
await recipient.publish(deletion(bob))
assert.equal(await recipient.count(wraps, {}), 0)
await assert.rejects(sender.publish(wrap), /blocked: /)

// Protected events are accepted only from their author.
const mine = finalizeEvent({ kind: 1, created_at: now(), tags: [['-']], content: 'mine' }, bob)
await assert.rejects(sender.publish(mine), /auth-required: /)
await assert.rejects(stranger.publish(mine), /restricted: /)
assert.equal(await recipient.publish(mine), '')

// The count has a HyperLogLog, as NIP-45 defines for this query.
const like = finalizeEvent({ kind: 7, created_at: now(), tags: [['e', mine.id]], content: '+' }, eve)
await stranger.publish(like)
const counted = await sender.countWithHLL([{ kinds: [7], '#e': [mine.id] }], {})
assert.equal(counted.count, 1)
assert.match(counted.hll, /^(00)*0[1-9a-f](00)*$/)
assert.equal(counted.hll.length, 512)
process.exit(0)
