// Manages the relay whose address is the first argument, by NIP-86, with requests that nostr-tools
// signs (NIP-98). The relay's settings name the keys: of the secret 01… every method, of 02… the
// role `moderator`, of 03… the role `guard`. The exit code reports a failure. tests/manage.rs runs
// this script.

import assert from 'node:assert/strict'
import { webcrypto } from 'node:crypto'
import WebSocket from 'ws'

// Node 18 has no global of this name.
globalThis.crypto ??= webcrypto
const { finalizeEvent, generateSecretKey, getPublicKey } = await import('nostr-tools/pure')
const { Relay, useWebSocketImplementation } = await import('nostr-tools/relay')
const { getToken } = await import('nostr-tools/nip98')
useWebSocketImplementation(WebSocket)

const url = process.argv[2]
assert.ok(url, 'usage: node nostr-tools-manage.mjs ws://127.0.0.1:PORT')
setTimeout(() => { throw new Error('no end after 60 s') }, 60_000).unref()
const http = url.replace(/^ws/, 'http')

const secret = digit => new Uint8Array(32).fill(digit)
const [admin, moderator, guard, stranger] = [1, 2, 3, 4].map(secret)
const keyOf = key => getPublicKey(key)
const now = () => Math.floor(Date.now() / 1000)
let number = 0

/** Sends a call, signed anew. Returns the status and the answer. */
async function send(key, method, params) {
  // Two equal calls within a second would have the same signature.
  const body = { method, params, n: number++ }
  const sign = event => finalizeEvent(event, key)
  const token = await getToken(http, 'POST', sign, true, body)
  const answer = await fetch(http, {
    method: 'POST',
    headers: { 'Content-Type': 'application/nostr+json+rpc', Authorization: token },
    body: JSON.stringify(body),
  })
  assert.equal(answer.headers.get('access-control-allow-origin'), '*')
  assert.equal(answer.headers.get('content-type'), 'application/nostr+json+rpc')
  return { status: answer.status, ...await answer.json() }
}

async function call(key, method, ...params) {
  const answer = await send(key, method, params)
  assert.equal(answer.status, 200, `${method}: ${JSON.stringify(answer)}`)
  return answer.result
}

const done = async (key, method, ...params) =>
  assert.equal(await call(key, method, ...params), true, method)

async function refused(status, words, key, method, ...params) {
  const answer = await send(key, method, params)
  assert.equal(answer.status, status, `${method}: ${JSON.stringify(answer)}`)
  assert.match(answer.error, words)
  assert.equal(answer.result, undefined)
}

const info = async () =>
  (await fetch(http, { headers: { Accept: 'application/nostr+json' } })).json()

const relay = await Relay.connect(url)
const note = (key, content, kind = 1, tags = []) =>
  finalizeEvent({ kind, created_at: now(), tags, content }, key)
const publish = event => relay.publish(event)
const stored = filter => new Promise(resolve => {
  const events = []
  const sub = relay.subscribe([filter], {
    onevent: event => events.push(event),
    oneose() { resolve(events); sub.close() },
    eoseTimeout: 50_000,
  })
})

// A browser asks first whether its page may send the request.
const preflight = await fetch(http, {
  method: 'OPTIONS',
  headers: {
    Origin: 'https://client.example',
    'Access-Control-Request-Method': 'POST',
    'Access-Control-Request-Headers': 'authorization,content-type',
  },
})
assert.ok(preflight.ok)
assert.equal(preflight.headers.get('access-control-allow-origin'), '*')
assert.match(preflight.headers.get('access-control-allow-methods'), /\bPOST\b/)
assert.match(preflight.headers.get('access-control-allow-headers'), /\bauthorization\b/i)

// The roles: which key may call which method.
const every = await call(admin, 'supportedmethods')
assert.equal(every.length, 24)
assert.ok(!every.includes('supportedmethods'))
const roles = new Map([
  [moderator, ['listeventsneedingmoderation', 'allowevent', 'banevent', 'listbannedevents']],
  [guard, ['banpubkey', 'unbanpubkey', 'assignrole', 'unassignrole']],
])
for (const [key, methods] of roles) {
  assert.deepEqual(new Set(await call(key, 'supportedmethods')), new Set(methods))
  for (const method of every.filter(method => !methods.includes(method)))
    await refused(403, /your roles do not include/, key, method)
}
for (const method of ['supportedmethods', ...every])
  await refused(403, /does not manage this relay/, stranger, method)
await refused(400, /no method "signevent"/, admin, 'signevent')
await refused(400, /parameter 1 is missing/, admin, 'banpubkey')

// Keys.
const spammer = generateSecretKey()
await publish(note(spammer, 'first'))
await done(guard, 'banpubkey', keyOf(spammer), 'casino')
await assert.rejects(publish(note(spammer, 'second')), /^.*blocked: .*casino/)
assert.deepEqual(await call(admin, 'listbannedpubkeys'), [{ pubkey: keyOf(spammer), reason: 'casino' }])
await done(guard, 'unbanpubkey', keyOf(spammer), 'a mistake')
await publish(note(spammer, 'third'))
assert.deepEqual(await call(admin, 'listbannedpubkeys'), [])
await done(admin, 'banpubkey', keyOf(spammer))
await done(admin, 'allowpubkey', keyOf(spammer), 'a friend')
await publish(note(spammer, 'fourth'))
assert.deepEqual(await call(admin, 'listallowedpubkeys'), [{ pubkey: keyOf(spammer), reason: 'a friend' }])
await done(admin, 'unallowpubkey', keyOf(spammer))
assert.deepEqual(await call(admin, 'listallowedpubkeys'), [])

// Events, with a queue of reports.
const author = generateSecretKey()
const [bad, good] = [note(author, 'bad'), note(author, 'good')]
for (const event of [bad, good]) await publish(event)
const report = (event, type, content) =>
  note(generateSecretKey(), content, 1984, [['e', event.id, type], ['p', event.pubkey]])
for (const event of [report(bad, 'illegal', ''), report(bad, 'illegal', ''), report(good, 'spam', 'so dull')])
  await publish(event)
const absent = { id: '9'.repeat(64), pubkey: keyOf(author) }
await publish(report(absent, 'spam', ''))
const queue = new Map((await call(moderator, 'listeventsneedingmoderation')).map(row => [row.id, row.reason]))
assert.deepEqual(queue, new Map([[bad.id, 'illegal (2)'], [good.id, 'spam: so dull']]))
await done(moderator, 'banevent', bad.id, 'it is')
await done(moderator, 'allowevent', good.id)
assert.deepEqual(await call(moderator, 'listeventsneedingmoderation'), [])
assert.deepEqual(await call(moderator, 'listbannedevents'), [{ id: bad.id, reason: 'it is' }])
assert.deepEqual((await stored({ authors: [keyOf(author)] })).map(event => event.id), [good.id])
await done(moderator, 'allowevent', bad.id)
assert.deepEqual(await call(moderator, 'listbannedevents'), [])

// Kinds.
await done(admin, 'disallowkind', 7)
await assert.rejects(publish(note(author, '+', 7)), /blocked: /)
await done(admin, 'allowkind', 7)
await publish(note(author, '-', 7))
assert.deepEqual(await call(admin, 'listallowedkinds'), [7])

// Addresses.
await done(admin, 'blockip', '192.0.2.7', 'a flood')
await done(admin, 'blockip', '2001:db8::/32')
const blocked = await call(admin, 'listblockedips')
assert.deepEqual(new Map(blocked.map(row => [row.ip, row.reason])),
  new Map([['192.0.2.7', 'a flood'], ['2001:db8::/32', undefined]]))
await done(admin, 'unblockip', '2001:db8::/32')
assert.deepEqual(await call(admin, 'listblockedips'), [{ ip: '192.0.2.7', reason: 'a flood' }])

// The relay's description of itself.
assert.equal((await info()).name, 'From the file')
await done(admin, 'changerelayname', 'From a client')
await done(admin, 'changerelaydescription', 'Changed, too')
await done(admin, 'changerelayicon', 'https://relay.example/icon.png')
const changed = await info()
assert.deepEqual([changed.name, changed.description, changed.icon],
  ['From a client', 'Changed, too', 'https://relay.example/icon.png'])
assert.ok(changed.supported_nips.includes(86))
await refused(400, /a URL/, admin, 'changerelayicon', 'javascript:alert(1)')
await done(admin, 'changerelaydescription', '')
assert.equal((await info()).description, 'Described in the file')

// Roles: a manager cannot give more than the manager has.
await done(admin, 'createrole', 'king', 'King', 'rules the relay', 37, 1)
await refused(400, /exists/, admin, 'createrole', 'king', 'King', '', 37, 1)
await done(admin, 'editrole', 'king', 'Queen', 'rules the relay', 38, 1)
await refused(400, /no role/, admin, 'editrole', 'pawn', 'Pawn', '', 1, 1)
await done(guard, 'assignrole', keyOf(stranger), 'king')
await refused(403, /does not manage/, stranger, 'supportedmethods')
await refused(403, /methods that you may not call/, guard, 'assignrole', keyOf(stranger), 'moderator')
await done(admin, 'assignrole', keyOf(stranger), 'moderator')
assert.equal((await call(stranger, 'supportedmethods')).length, 4)
await refused(400, /\[manage\] roles/, admin, 'unassignrole', keyOf(moderator), 'moderator')
await done(admin, 'unassignrole', keyOf(stranger), 'moderator')
await refused(403, /does not manage/, stranger, 'supportedmethods')
await done(admin, 'deleterole', 'king')
await refused(400, /no role/, admin, 'deleterole', 'king')
await refused(400, /no role/, admin, 'assignrole', keyOf(stranger), 'king')
await done(admin, 'assignrole', keyOf(stranger), 'moderator')

process.exit(0)
