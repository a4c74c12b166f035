// The eight cases of `hark bench cases` by k6: a narrow or a wide area, the first page or all
// events, and 1 or 5 users at once. README.md explains how to install and run k6.
//
// Questions are drawn from EVENTS, a file of `hark bench gen`, by a seed. Narrow questions
// alternate between one author and one hashtag. Wide questions cover all events of some days.

import { check } from 'k6';
import { SharedArray } from 'k6/data';
import exec from 'k6/execution';
import { Counter, Rate, Trend } from 'k6/metrics';
import { WebSocket } from 'k6/websockets';

// Servers that receive the questions in turn. Each has all events.
const SERVERS = (__ENV.SERVERS || 'ws://127.0.0.1:7777').split(',');
const EVENTS = __ENV.EVENTS || 'events.jsonl';
const SEED = Number(__ENV.SEED || 7);
const SECONDS = Number(__ENV.SECONDS || 10);
const DAYS = Number(__ENV.DAYS || 7);
const PAGE = Number(__ENV.PAGE || 500);

const FIRST_PAGE = 100;
const QUESTIONS = 256;
const DAY_S = 86400;
// An answer that takes longer has failed.
const ANSWER_MS = 60000;
// The pause between two scenarios, so that they do not overlap.
const PAUSE_S = 2;

const FORMS = [
  { name: 'narrow_first', area: 'narrow', everything: false, title: 'narrow, first page' },
  { name: 'narrow_all', area: 'narrow', everything: true, title: 'narrow, everything' },
  { name: 'wide_first', area: 'wide', everything: false, title: 'wide, first page' },
  { name: 'wide_all', area: 'wide', everything: true, title: 'wide, everything' },
];
const AT_ONCE = [1, 5];

const CASES = FORMS.flatMap((form) =>
  AT_ONCE.map((users) => ({ ...form, form: form.name, users, name: `${form.name}_${users}`, title: `${form.title}, ${users} at once` })),
);

const times = {};
const answered = {};
const received = {};
for (const one of CASES) {
  times[one.name] = new Trend(`${one.name}_ms`, true);
  answered[one.name] = new Rate(`${one.name}_success`);
  received[one.name] = new Counter(`${one.name}_events`);
}

export const options = {
  scenarios: Object.fromEntries(
    CASES.map((one, number) => [
      one.name,
      {
        executor: 'constant-vus',
        vus: one.users,
        duration: `${SECONDS}s`,
        gracefulStop: `${ANSWER_MS}ms`,
        startTime: `${number * (SECONDS + PAUSE_S)}s`,
        exec: 'ask',
        env: { CASE: one.name },
      },
    ]),
  ),
  thresholds: Object.fromEntries(CASES.map((one) => [`${one.name}_success`, ['rate==1.00']])),
  summaryTrendStats: ['count', 'avg', 'min', 'med', 'max', 'p(90)', 'p(95)'],
};

// A small random number generator (mulberry32). The same seed gives the same numbers.
function random(seed) {
  let state = seed >>> 0;
  return (bound) => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return Math.floor((((mixed ^ (mixed >>> 14)) >>> 0) / 4294967296) * bound);
  };
}

// Reads the file once for all users, and keeps only the questions.
const questions = new SharedArray('questions', () => {
  const authors = new Map();
  const hashtags = new Map();
  let [oldest, newest] = [Infinity, 0];
  for (const line of open(EVENTS).split('\n')) {
    if (line === '') continue;
    const event = JSON.parse(line);
    oldest = Math.min(oldest, event.created_at);
    newest = Math.max(newest, event.created_at);
    if (event.kind !== 1) continue;
    authors.set(event.pubkey, (authors.get(event.pubkey) || 0) + 1);
    for (const tag of event.tags) {
      if (tag[0] === 't') hashtags.set(tag[1], (hashtags.get(tag[1]) || 0) + 1);
    }
  }
  const ranked = (counts) => [...counts].sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1)).map(([value]) => value);
  // The busiest author is left out: no client requests an author with a fifth of all events.
  const [people, tags] = [ranked(authors).slice(1, 2000), ranked(hashtags).slice(0, 300)];
  if (people.length === 0 || tags.length === 0) throw new Error(`${EVENTS} has too few events to draw questions from`);
  const below = random(SEED);
  // Low ranks are drawn far more often: each doubling of the range is equally likely.
  const zipf = (list) => {
    const from = 2 ** below(Math.floor(Math.log2(list.length)) + 1);
    return list[Math.min(from + below(from), list.length) - 1];
  };
  const drawn = [];
  for (let number = 0; number < QUESTIONS; number += 1) {
    const filter = number % 2 === 0 ? { authors: [zipf(people)] } : { '#t': [zipf(tags)] };
    drawn.push({ area: 'narrow', filter, until: newest });
  }
  const span = Math.round(DAYS * DAY_S);
  for (let number = 0; number < QUESTIONS; number += 1) {
    const since = oldest + below(Math.max(newest - oldest - span, 0) + 1);
    drawn.push({ area: 'wide', filter: { since }, until: since + span });
  }
  return drawn;
});

// Requests one page and calls `done` with its events, or without arguments if the server refuses.
function page(socket, filter, done) {
  const events = [];
  socket.onmessage = (message) => {
    const [type, , event] = JSON.parse(message.data);
    if (type === 'EVENT') events.push({ id: event.id, created_at: event.created_at });
    else if (type === 'EOSE') done(events);
    else if (type === 'CLOSED' || type === 'NOTICE') done(null);
  };
  socket.send(JSON.stringify(['REQ', 'q', filter]));
}

// Reads an answer page by page. Each page begins at the oldest second of the previous page. The
// events of that second come again and are not counted twice.
function read(socket, one, question, done) {
  const limit = one.everything ? PAGE : FIRST_PAGE;
  let [until, seen, count] = [question.until, new Set(), 0];
  const next = () =>
    page(socket, { ...question.filter, until, limit }, (events) => {
      if (events === null) return done(false, count);
      socket.send(JSON.stringify(['CLOSE', 'q']));
      const fresh = events.filter((event) => !seen.has(event.id));
      count += fresh.length;
      if (!one.everything || events.length < limit) return done(true, count);
      const oldest = events.reduce((least, event) => Math.min(least, event.created_at), until);
      // A second with more events than a page: its remaining events cannot be requested.
      until = fresh.length === 0 ? until - 1 : oldest;
      seen = new Set(events.filter((event) => event.created_at === until).map((event) => event.id));
      return next();
    });
  next();
}

// Sends one question to the next server, on a new connection. The time to connect does not count.
export function ask() {
  const one = CASES.find((found) => found.name === __ENV.CASE);
  const asked = exec.vu.iterationInScenario;
  const user = exec.vu.idInTest;
  const number = (user * Math.floor(QUESTIONS / one.users) + asked) % QUESTIONS;
  const question = questions[number + (one.area === 'wide' ? QUESTIONS : 0)];
  const socket = new WebSocket(SERVERS[(user + asked) % SERVERS.length]);
  let ended = false;
  const end = (success, events, elapsed) => {
    if (ended) return;
    ended = true;
    clearTimeout(timeout);
    if (success) {
      times[one.name].add(elapsed);
      received[one.name].add(events);
    }
    answered[one.name].add(success);
    check(success, { 'the answer is whole': (whole) => whole });
    socket.close();
  };
  const timeout = setTimeout(() => end(false), ANSWER_MS);
  socket.onerror = () => end(false);
  socket.onclose = () => end(false);
  socket.onopen = () => {
    const start = Date.now();
    read(socket, one, question, (success, events) => end(success, events, Date.now() - start));
  };
}

// Prints the table of the cases, and writes all metrics as JSON if SUMMARY names a file.
export function handleSummary(data) {
  const heads = ['count', 'success', 'avg', 'min', 'med', 'max', 'p(90)', 'p(95)'];
  const value = (metric, key) => (data.metrics[metric] ? data.metrics[metric].values[key] : undefined);
  const figure = (number) => (number === undefined ? '-' : number.toFixed(2));
  const rows = CASES.map((one) => {
    const success = value(`${one.name}_success`, 'rate');
    const [passes, fails] = ['passes', 'fails'].map((key) => value(`${one.name}_success`, key) || 0);
    return [one.title, String(passes + fails), figure(success)].concat(
      heads.slice(2).map((key) => figure(value(`${one.name}_ms`, key))),
    );
  });
  const table = [['ms', ...heads], ...rows];
  const widths = table[0].map((_, at) => Math.max(...table.map((row) => row[at].length)));
  const line = (row) => row.map((cell, at) => (at === 0 ? cell.padEnd(widths[at]) : cell.padStart(widths[at]))).join('  ');
  const text = `${table.map(line).join('\n')}\n`;
  const files = { stdout: text };
  if (__ENV.SUMMARY) files[__ENV.SUMMARY] = JSON.stringify(data, null, 2);
  return files;
}
