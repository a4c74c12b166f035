// Uses nostr-tools as applications do, with the relay whose address is the first argument: the member
// with the secret 01… asks the relay for an invite code (NIP-43), and a friend joins with this code
// and publishes. The exit code reports a failure. tests/member_invites.rs runs this script.

import assert from 'node:assert/strict'
import { webcrypto } from 'node:crypto'
import WebSocket from 'ws'

// Node 18 has no global of this name.
globalThis.crypto ??= webcrypto
const { finalizeEvent, generateSecretKey, verifyEvent } = await import('nostr-tools/pure')
const { Relay, useWebSocketImplementation } = await import('nostr-tools/relay')
useWebSocketImplementation(WebSocket)

const url = process.argv[2]
assert.ok(url, 'usage: node nostr-tools-invite.mjs ws://127.0.0.1:PORT')
setTimeout(() => { throw new Error('no end after 60 s') }, 60_000).unref()

const [member, friend] = [new Uint8Array(32).fill(1), generateSecretKey()]
const signed = (secret, kind, tags, content = '') => finalizeEvent(
  { kind, created_at: Math.floor(Date.now() / 1000), tags, content }, secret)

/** A connection that has shown whose it is. */
async function as(secret) {
  const relay = await Relay.connect(url)
  while (!relay.challenge) await new Promise(resolve => setTimeout(resolve, 5))
  await relay.auth(async template => finalizeEvent(template, secret))
  return relay
}

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

const page = await fetch(url.replace(/^ws/, 'http'), { headers: { Accept: 'application/nostr+json' } })
const { self, supported_nips } = await page.json()
assert.ok(supported_nips.includes(43))

const filters = [{ kinds: [28935], authors: [self] }]
assert.match((await ask(await Relay.connect(url), filters)).reason, /^auth-required: /)
const newcomer = await as(friend)
assert.match((await ask(newcomer, filters)).reason, /^restricted: /)
await assert.rejects(newcomer.publish(signed(friend, 1, [], 'hello')), /blocked: /)

const inviter = await as(member)
const { events: [invite] } = await ask(inviter, filters)
assert.ok(verifyEvent(invite))
assert.equal(invite.pubkey, self)
assert.deepEqual(invite.tags[0], ['-'])
const [name, code] = invite.tags[1]
assert.equal(name, 'claim')
assert.match((await ask(inviter, filters)).reason, /^rate-limited: /)

assert.match(await newcomer.publish(signed(friend, 28934, [['-'], ['claim', code]])), /^info: welcome/)
assert.equal(await newcomer.publish(signed(friend, 1, [], 'hello')), '')
process.exit(0)
