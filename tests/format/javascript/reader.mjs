// A reader of ckstore stores, written from format/v1.md and format/encoded-1.md alone. Each function names its section ("§") of v1.md,
// or of encoded-1.md ("§e"). It writes nothing into a store and takes no locks. `Refused` is damage, `Newer` a format that it does not know.
import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { constants } from 'node:buffer';
import { createHash } from 'node:crypto';
import { pathToFileURL } from 'node:url';
import { createXXHash128, createBLAKE3 } from 'hash-wasm';
import { decompress } from 'fzstd';

export class Refused extends Error {}
export class Newer extends Refused {}
const refuse = (text) => { throw new Refused(text); };
const need = (ok, text) => { if (!ok) refuse(text); };
const MIB = 1 << 20, BIG = 2 ** 53;
const isInt = (n, least, most = BIG) => typeof n === 'number' && n >= least && n <= most; // parseJSON makes numbers only of integers
const isObject = (o) => o !== null && typeof o === 'object' && !Array.isArray(o) && !(o instanceof Float);
const pick = (table, name) => (isString(name) && Object.hasOwn(table, name) ? table[name] : undefined); // not `constructor`
const isString = (s) => typeof s === 'string';

/** A float, told apart from an integer; `bits` if it is not finite. It computes and prints like a number. */
export class Float extends Number { constructor(value, bits) { super(value); if (bits) this.bits = bits; } }
/** A value of the state that JavaScript lacks: `type` is the first element of its node. */
export class Value { constructor(type, fields) { this.type = type; Object.assign(this, fields); } }

// ---------------------------------------------------------------------------------------------------------------- JSON and digests
/** §The ckstore format, §Numbers, §Limits: JSON in ASCII. No member twice, integers within 2^53, finite floats, 500 levels. */
export function parseJSON(buf, what) {
  let at = 0;
  const bad = (why) => refuse(`${what}: byte ${at}: ${why}`);
  const space = () => { while (buf[at] === 32 || buf[at] === 10 || buf[at] === 13 || buf[at] === 9) at++; return buf[at]; };
  const string = () => {
    const start = ++at;
    let escaped = false;
    for (; buf[at] !== 34; at++) {
      if (buf[at] === 92) { escaped = true; at++; }
      if (!(buf[at] >= 32 && buf[at] <= 127)) bad('not a string in ASCII');
    }
    const raw = buf.toString('latin1', start, at++);
    try { return escaped ? JSON.parse(`"${raw}"`) : raw; } catch { return bad('wrong escape'); }
  };
  const number = () => {
    const start = at;
    while ((buf[at] >= 48 && buf[at] <= 57) || [43, 45, 46, 69, 101].includes(buf[at])) at++;
    const text = buf.toString('latin1', start, at), form = /^-?(?:0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?$/.exec(text);
    if (!form || text.length > 30110 || text.replace(/\D/g, '').length > 30103) bad('not a number, or too long');
    if (form[1] || form[2]) return Number.isFinite(+text) ? new Float(+text) : bad('a float that is not finite');
    if (text.length > 17 || Math.abs(+text) > BIG || (Math.abs(+text) === BIG && !text.endsWith('9007199254740992'))) bad('an integer beyond 2^53');
    return +text || 0;
  };
  const value = (depth) => {
    if (depth > 500) bad('more than 500 levels');
    const c = space();
    if (c === 34) return string();
    if (c === 123 || c === 91) {
      const close = c + 2, out = c === 91 ? [] : Object.create(null);
      at++;
      if (space() === close) { at++; return out; }
      for (;;) {
        if (c === 91) out.push(value(depth + 1));
        else {
          if (space() !== 34) bad('not a member');
          const name = string();
          if (name in out) bad(`a member twice: ${JSON.stringify(name)}`);
          if (space() !== 58) bad('no colon');
          at++;
          out[name] = value(depth + 1);
        }
        const next = space();
        at++;
        if (next === close) return out;
        if (next !== 44) bad('no comma');
      }
    }
    for (const [word, v] of [['null', null], ['true', true], ['false', false]]) {
      if (buf.toString('latin1', at, at + word.length) === word) { at += word.length; return v; }
    }
    return number();
  };
  const out = value(1);
  if (space() !== undefined) bad('text after the end');
  return out;
}

/** §Terms, canonical JSON: a float in Python's form. */
export function pythonFloat(f) {
  const x = +f;
  if (!Number.isFinite(x)) return String(x).replace('Infinity', 'inf').replace('NaN', 'nan');
  const sign = x < 0 || Object.is(x, -0) ? '-' : '', [m, e] = Math.abs(x).toExponential().split('e'), n = +e, digits = m.replace('.', '');
  if (n < -4 || n >= 16) return `${sign}${m}e${n < 0 ? '-' : '+'}${String(Math.abs(n)).padStart(2, '0')}`;
  if (n < 0) return `${sign}0.${'0'.repeat(-n - 1)}${digits}`;
  return `${sign}${digits.slice(0, n + 1).padEnd(n + 1, '0')}.${digits.slice(n + 1) || '0'}`;
}
const quote = (s) => `"${s.replace(/["\\]|[^ -~]/g, (c) => ({ '"': '\\"', '\\': '\\\\', '\b': '\\b', '\t': '\\t', '\n': '\\n', '\f': '\\f', '\r': '\\r' })[c]
  ?? `\\u${c.charCodeAt(0).toString(16).padStart(4, '0')}`)}"`;
/** §Terms: member names are sorted by code point, which differs from the order of JavaScript's UTF-16 units. */
function byCodePoint(a, b) {
  let i = 0;
  while (i < a.length && a.charCodeAt(i) === b.charCodeAt(i)) i++;
  if (i && a.charCodeAt(i - 1) >= 0xd800 && a.charCodeAt(i - 1) < 0xdc00) i--; // inside a pair
  return (a.codePointAt(i) ?? -1) - (b.codePointAt(i) ?? -1);
}
/** §Terms: canonical JSON of a value of parseJSON. */
export function canonical(v) {
  if (typeof v === 'string') return quote(v);
  if (v instanceof Float) return pythonFloat(v);
  if (Array.isArray(v)) return `[${v.map(canonical).join(',')}]`;
  if (isObject(v)) return `{${Object.keys(v).sort(byCodePoint).map((k) => `${quote(k)}:${canonical(v[k])}`).join(',')}}`;
  return String(v);
}
const HASHERS = { xxh3: await createXXHash128(), blake3: await createBLAKE3() };
/** §Terms, digest. */
export function digestOf(algo, bytes) {
  const h = HASHERS[algo].init();
  for (let at = 0; at < bytes.length; at += 16 * MIB) h.update(bytes.subarray(at, at + 16 * MIB));
  return `${algo}-${h.digest('hex')}`;
}
const isDigest = (d, algo) => isString(d) && (algo === 'xxh3' ? /^xxh3-[0-9a-f]{32}$/ : /^blake3-[0-9a-f]{64}$/).test(d);

// ---------------------------------------------------------------------------------------------------------------- files
/** A regular file, or its range; no symlink is followed. Null if there is no such name. */
function readFile(file, most, size, offset = 0, length = undefined) {
  let fd;
  try { fd = fs.openSync(file, fs.constants.O_RDONLY | fs.constants.O_NOFOLLOW | fs.constants.O_NONBLOCK); } catch (e) {
    if (e.code === 'ENOENT') return null;
    refuse(`${file}: ${e.code}`);
  }
  try {
    const stat = fs.fstatSync(fd);
    need(stat.isFile(), `${file}: not a regular file`);
    need(stat.size <= most && (size === undefined || stat.size === size), `${file}: ${stat.size} bytes, expected ${size ?? `at most ${most}`}`);
    const out = Buffer.allocUnsafe(length ?? stat.size);
    for (let at = 0; at < out.length;) {
      const n = fs.readSync(fd, out, at, Math.min(out.length - at, 1 << 30), offset + at);
      need(n > 0, `${file}: shorter than its size`);
      at += n;
    }
    return out;
  } finally { fs.closeSync(fd); }
}
/** The names of the entries of a directory that is no symlink; a missing one counts as empty (§The store). */
function entries(dir) {
  try { need(fs.lstatSync(dir).isDirectory(), `${dir}: not a directory`); return fs.readdirSync(dir, { withFileTypes: true }); } catch (e) {
    if (e.code === 'ENOENT') return [];
    throw e;
  }
}
/** §Digests of small files, and the version of each. */
function smallFile(file, format, most = MIB) {
  const bytes = readFile(file, most);
  if (bytes === null) return null;
  const o = parseJSON(bytes, file);
  need(isObject(o) && o.format === format && isInt(o.version, 1), `${file}: not a ${format}`);
  if (o.version > 1) throw new Newer(`${file}: version ${o.version} needs a newer reader`);
  if ('digest' in o) {
    const rest = Object.assign(Object.create(null), o);
    delete rest.digest;
    need(o.digest === digestOf('xxh3', Buffer.from(canonical(rest), 'latin1')), `${file}: the digest differs`);
  }
  return o;
}
/** §Limits: compare a stated size with the memory before it is allocated. */
function afford(bytes, what) {
  const free = process.availableMemory?.() ?? os.freemem();
  need(bytes <= Math.min(free, constants.MAX_LENGTH), `${what}: needs ${bytes} bytes of memory, ${Math.min(free, constants.MAX_LENGTH)} are available`);
}

// ---------------------------------------------------------------------------------------------------------------- a checkpoint
const SIZES = { bool: 1, uint8: 1, int8: 1, float8_e4m3fn: 1, float8_e4m3fnuz: 1, float8_e5m2: 1, float8_e5m2fnuz: 1, float8_e8m0fnu: 1,
  float4_e2m1fn_x2: 1, int16: 2, uint16: 2, float16: 2, bfloat16: 2, int32: 4, uint32: 4, float32: 4, complex32: 4, bcomplex32: 4, int64: 8, uint64: 8,
  float64: 8, complex64: 8, complex128: 16 };
const NUMPY = { b: [1], i: [1, 2, 4, 8], u: [1, 2, 4, 8], f: [2, 4, 8], c: [8, 16], M: [8], m: [8] };
/** §Leaves: the bytes of an element. The number in `<U5` counts characters of four bytes. */
function itemSize(kind, dtype) {
  if (kind === 'torch') return pick(SIZES, dtype) ?? refuse(`unknown dtype ${dtype}`);
  if (kind === 'numbers') return pick({ int64: 8, float64: 8, bool: 1 }, dtype) ?? refuse(`unknown dtype ${dtype}`);
  const form = isString(dtype) && /^[<>|=]([biufcMmSU])([1-9]\d{0,9})(\[[^\]]{1,40}\])?$/.exec(dtype);
  need(form && (!form[3] || 'Mm'.includes(form[1])), `unknown dtype ${dtype}`);
  const n = +form[2];
  if ('SU'.includes(form[1])) return n < 2 ** 31 ? n * (form[1] === 'U' ? 4 : 1) : refuse(`unknown dtype ${dtype}`);
  return NUMPY[form[1]].includes(n) ? n : refuse(`unknown dtype ${dtype}`);
}
const rowMajor = (shape) => { const s = []; let n = 1; for (let i = shape.length; i--;) { s[i] = n; n *= shape[i] || 1; } return s; };

/** §Leaves: one leaf. `bytes()` is row-major, or the whole value of a kind without a shape; leaves of one storage share `memory()`. */
export class Leaf {
  constructor(checkpoint, i, l) {
    const size = checkpoint.m.storages[l.storage]?.[0], tiling = checkpoint.m.storages[l.storage]?.[2], kinds = ['torch', 'numpy', 'numbers'];
    need(isObject(l) && isString(l.name) && isInt(l.storage, 0) && size !== undefined, `leaf ${i} is malformed`);
    Object.assign(this, { checkpoint, name: l.name, kind: l.kind, storage: l.storage, offset: l.offset ?? 0, tiling });
    const bad = (why) => refuse(`leaf ${JSON.stringify(l.name)}: ${why}`);
    if (!kinds.includes(l.kind)) {
      if (!['bytes', 'bytearray', 'io.BytesIO', 'str'].includes(l.kind)) bad(`unknown kind ${l.kind}`);
      if (tiling) bad('a tiling without a shape');
      [this.offset, this.nbytes] = [0, size];
      return;
    }
    this.dtype = l.dtype; this.itemsize = itemSize(l.kind, l.dtype); this.shape = l.shape;
    if (!Array.isArray(l.shape) || !l.shape.every((n) => isInt(n, 0)) || !isInt(this.offset, 0)) bad('wrong shape or offset');
    const product = l.shape.reduce((p, n) => p * BigInt(n || 1), l.kind === 'numpy' ? BigInt(this.itemsize) : 1n);
    if (product >= 1n << 63n || (l.kind === 'numpy' && l.shape.length > 64)) bad('too many elements');
    if (l.kind === 'numbers' && (l.shape.length !== 1 || 'offset' in l || 'strides' in l)) bad('numbers with strides');
    this.strides = l.strides ?? rowMajor(l.shape);
    if (!Array.isArray(this.strides) || this.strides.length !== l.shape.length ||
      (l.strides && !this.strides.every((s) => isInt(s, l.kind === 'torch' ? 0 : -BIG)))) bad('wrong strides');
    this.empty = l.shape.includes(0);
    this.nbytes = this.empty ? 0 : l.shape.reduce((p, n) => p * n, this.itemsize); // beyond 2^53 only where nothing is allocated
    const full = rowMajor(l.shape);
    this.contiguous = this.empty || l.shape.every((n, d) => n === 1 || this.strides[d] === full[d]);
    if (this.empty) return;
    let [low, high] = [BigInt(this.offset), BigInt(this.offset) + BigInt(this.itemsize)];
    l.shape.forEach((n, d) => { const far = BigInt(this.itemsize) * BigInt(n - 1) * BigInt(this.strides[d]); if (far < 0n) low += far; else high += far; });
    if (low < 0n || high > BigInt(size)) bad('elements outside the storage');
    if (tiling) {                                                                                                       // §Shards
      const want = l.shape.length ? [...l.shape.slice(0, -1), l.shape.at(-1) * this.itemsize] : [this.itemsize];
      if (this.offset || l.strides || this.nbytes !== size || canonical(tiling[0]) !== canonical(want)) bad('is not the tensor of its tiling');
    }
  }
  /** The memory of the storage, the same for all leaves that share it. */
  memory() { return this.checkpoint.memory(this.storage); }
  bytes() {
    if (this.empty) return Buffer.alloc(0);
    if (!this.shape || this.contiguous) return this.memory().subarray(this.offset, this.offset + this.nbytes);
    afford(this.nbytes, this.name);
    const from = this.memory(), out = Buffer.allocUnsafe(this.nbytes), size = this.itemsize;
    let to = 0;
    const walk = (d, at) => {
      const step = this.strides[d] * size;
      for (let k = this.shape[d]; k--; at += step) {
        if (d + 1 < this.shape.length) walk(d + 1, at);
        else { for (let b = 0; b < size; b++) out[to + b] = from[at + b]; to += size; }
      }
    };
    walk(0, this.offset);
    return out;
  }
  /** SHA-256 of `bytes()`; a row-major leaf is read one piece at a time. */
  sha256() {
    const h = createHash('sha256');
    if (this.empty) return h.digest('hex');
    if (this.tiling || (this.shape && !this.contiguous)) return h.update(this.bytes()).digest('hex');
    for (const part of this.checkpoint.read(this.storage, this.offset, this.offset + this.nbytes)) h.update(part);
    return h.digest('hex');
  }
  /** §Leaves, kind `str`: UTF-8 in which a surrogate is three bytes of its own, which TextDecoder refuses. */
  text() {
    const b = this.bytes(), out = [];
    for (let i = 0; i < b.length;) {
      const n = b[i] < 0x80 ? 1 : b[i] < 0xe0 ? 2 : b[i] < 0xf0 ? 3 : 4;
      let c = n === 1 ? b[i] : b[i] & (0xff >> (n + 1));
      for (let k = 1; k < n; k++) { need((b[i + k] & 0xc0) === 0x80, `${this.name}: not UTF-8`); c = (c << 6) | (b[i + k] & 63); }
      need(b[i] < 0xf8 && !(b[i] >= 0x80 && b[i] < 0xc2) && c <= 0x10ffff && c >= [0, 0, 0x80, 0x800, 0x10000][n], `${this.name}: not UTF-8`);
      out.push(String.fromCodePoint(c));
      i += n;
    }
    return out.join('');
  }
  toJSON() { return { leaf: this.name }; }
}

/** §A checkpoint: a directory, under any name. The constructor refuses it unless its documents are valid. */
export class Checkpoint {
  constructor(dir) {
    this.dir = dir;
    this.decoded = new Map(); this.shared = new Map();
    need(fs.lstatSync(dir).isDirectory(), `${dir}: not a directory`);
    const first = this.document('manifest.json');
    this.algo = first.algo;
    try {
      if (first.m.requires?.includes('encoded-1')) this.encoding(first.m);
      else [this.id, this.m] = [first.id, first.m];
      this.validate();
    } catch (e) { if (!(e instanceof TypeError || e instanceof RangeError)) throw e; refuse(`${dir}: malformed: ${e.message}`); } // an array where none is
  }
  /** §manifest.json: the frame, the digest, the version, `requires`. */
  document(name) {
    const file = path.join(this.dir, name), bytes = readFile(file, 512 * MIB) ?? refuse(`${file}: missing`);
    const head = /^\{"digest":"((xxh3|blake3)-[0-9a-f]+)","manifest":(?=\{)/.exec(bytes.toString('latin1', 0, 128));
    need(head && isDigest(head[1], head[2]) && bytes.toString('latin1', bytes.length - 3) === '}}\n', `${file}: not the frame of a manifest`);
    const M = bytes.subarray(head[0].length, bytes.length - 2);
    need(digestOf(head[2], M) === head[1], `${file}: its bytes do not match its digest`);
    const m = parseJSON(M, file);
    need(m.format === 'ckstore-manifest' && isInt(m.version, 1), `${file}: not a manifest`);
    if (m.version > 1) throw new Newer(`${file}: version ${m.version} needs a newer reader`);
    need(m.requires === undefined || (Array.isArray(m.requires) && m.requires.every(isString)), `${file}: wrong requires`);
    for (const r of m.requires ?? []) if (!['shards', 'encoded-1'].includes(r)) throw new Newer(`${file}: requires ${quote(r)}, needs a newer reader`);
    return { id: head[1], algo: head[2], m, M };
  }
  /** §e A compacted checkpoint, Rules for readers. */
  encoding(e) {
    const plain = this.document('plain.json'), bad = (why) => refuse(`${this.dir}/manifest.json: ${why}`);
    if (plain.id !== e.checkpoint || plain.algo !== this.algo || plain.m.requires?.includes('encoded-1')) bad('plain.json is not its manifest');
    [this.id, this.m, this.files, this.encoded] = [plain.id, plain.m, new Map(), new Map()];
    if (!Array.isArray(e.files) || !Array.isArray(e.encoded)) bad('no files');
    for (const [d, size] of e.files) {
      if (!isDigest(d, this.algo) || !isInt(size, 0) || this.files.has(d)) bad('wrong files');
      this.files.set(d, size);
    }
    for (const [d, size, file, bases] of e.encoded) {
      if (!isDigest(d, this.algo) || !isInt(size, 1, 2 ** 31) || !isInt(file, 0, e.files.length - 1) || !Array.isArray(bases)) bad('wrong encoded');
      if (this.files.has(d) || this.encoded.has(d)) bad('a blob twice');
      this.encoded.set(d, { size, file: e.files[file][0], bases });
    }
    const heights = new Map(), height = (d, level) => {
      if (!this.encoded.has(d)) return this.files.has(d) ? 0 : bad('a base is missing');
      if (level + (heights.get(d) ?? 1) > 8) bad('a path of more than 8 encoded blobs, or a loop');
      if (!heights.has(d)) heights.set(d, 1 + Math.max(0, ...this.encoded.get(d).bases.map((b) => height(b, level + 1))));
      return heights.get(d);
    };
    for (const d of this.encoded.keys()) height(d, 0);
    for (const [d, size] of this.m.blobs) if ((this.files.get(d) ?? this.encoded.get(d)?.size) !== size) bad(`blob ${d} is missing`);
  }
  /** §manifest.json, §Shards, §Leaves, §Files: the members that this reader uses. */
  validate() {
    const m = this.m, bad = (why) => refuse(`${this.dir}: ${why}`);
    if (!isString(m.run) || !isInt(m.step, 0) || !isInt(m.sequence, 1, BIG - 1) || !isString(m.created)) bad('run, step, sequence or created is wrong');
    if (![m.blobs, m.storages, m.leaves].every(Array.isArray) || !('state' in m)) bad('a member is missing');
    const seen = new Set(), shards = m.requires?.includes('shards');
    for (const [d, size] of m.blobs) { if (!isDigest(d, this.algo) || seen.has(d) || !isInt(size, 1, 2 ** 31)) bad('wrong blobs'); seen.add(d); }
    m.storages.forEach(([size, extents, tiling], i) => {
      if (!isInt(size, 0) || !Array.isArray(extents)) bad(`storage ${i} is malformed`);
      let sum = 0;
      extents.forEach(([d, blob, offset, length], k) => {
        if (!isDigest(d, this.algo) || !isInt(blob, 0, m.blobs.length - 1) || !isInt(offset, 0) || !isInt(length, 1) || offset + length > m.blobs[blob][1]) bad(`storage ${i}: wrong extent`);
        if (!shards && k + 1 < extents.length && length % MIB) bad(`storage ${i}: an extent that is not a multiple of 1 MiB`);
        sum += length;
      });
      if (sum !== size) bad(`storage ${i}: its extents have ${sum} bytes, not ${size}`);
      if (tiling !== undefined) { if (!shards) bad('a tiling without "shards"'); checkGrid(tiling, extents, size, bad); }
    });
    this.leaves = m.leaves.map((l, i) => new Leaf(this, i, l));
    const users = new Map(), names = new Set();
    for (const l of this.leaves) {
      if (names.has(l.name)) bad(`two leaves ${quote(l.name)}`);
      names.add(l.name);
      if (l.nbytes) users.set(l.storage, [...users.get(l.storage) ?? [], l]);
    }
    for (const ls of users.values()) if (ls.length > 1 && ls.some((l) => l.kind !== 'torch' || l.tiling)) bad(`leaves share the storage of ${quote(ls[0].name)}`);
    this.used = new Set(); this.paths = 0;
    this.state = this.node(m.state, '', 1);
    if (this.used.size !== this.leaves.length) bad('a leaf is not in the state');
    this.checkFiles(bad);
  }
  /** §Nodes, §Keys, §Names: the value of a node, and the name of each leaf in it. */
  node(n, name, depth) {
    const bad = (why) => refuse(`${this.dir}: state at ${quote(name)}: ${why}`);
    this.paths += name.length;
    if (n === null || ['boolean', 'string', 'number'].includes(typeof n)) return n;
    if (!Array.isArray(n) || pick(NODES, n[0]) !== n.length - 1) bad(`not a node: ${quote(String(n[0]))}`);
    if (depth > 101 || this.paths > 2 ** 27 + 64 * 512 * MIB) bad('nested too deeply');
    const [type, a, b, c] = n, text = (re, s = a) => (isString(s) && re.test(s) ? s : bad(`wrong ${type}`)), v = (fields) => new Value(type, fields);
    const list = (l) => (Array.isArray(l) ? l : bad(`wrong ${type}`)), items = () => list(a).map((x, i) => this.node(x, `${name}[${i}]`, depth + 1));
    const inner = (x) => { const before = this.used.size, out = this.node(x, name, depth + 1); return this.used.size === before ? out : bad('a leaf in attributes'); };
    const pairs = (onlyStrings) => {
      const out = new Map(), same = new Set();
      for (const pair of list(a)) {
        const k = list(pair).length === 2 && !(onlyStrings && !isString(pair[0])) ? key(pair[0], 0, bad) : bad('wrong key');
        const id = pythonEqual(k);
        if (same.has(id)) bad(`two equal keys: ${quote(id)}`);
        same.add(id);
        out.set(k, this.node(pair[1], name + (isString(k) ? (name && '.') + nameText(k) : `[${keyText(k).replace(/[\\[\]]/g, '\\$&')}]`), depth + 1));
      }
      return out;
    };
    switch (type) {
      case 'leaf': if (!isInt(a, 0, this.leaves.length - 1) || this.used.has(a)) bad('wrong leaf');
        if (this.leaves[a].name !== name) bad(`the leaf is named ${quote(this.leaves[a].name)}`);
        this.used.add(a);
        return this.leaves[a];
      case 'int': return integer(a, bad);
      case 'float': return float(a, bad);
      case 'complex': return v({ re: float(a, bad), im: float(b, bad) });
      case 'bytes': case 'bytearray': case 'io.BytesIO': return v({ bytes: base64(a, bad) });
      case 'numpy': { const bytes = base64(b, bad); return bytes.length === itemSize('numpy', a) ? v({ dtype: a, bytes }) : bad('wrong numpy'); }
      case 'list': return items();
      case 'tuple': case 'torch.Size': return v({ items: items() });
      case 'deque': return b === null || isInt(b, 0) ? v({ items: items(), most: b }) : bad('wrong deque');
      case 'dict': return pairs();
      case 'counter': return v({ items: pairs() });
      case 'defaultdict': if (b !== null) text(/^(list|dict|tuple|set|frozenset|str|bytes|bool|int|float|complex|deque|Counter|OrderedDict)$/, b); return v({ items: pairs(), maker: b });
      case 'odict': return v({ items: pairs(), attributes: inner(b) });
      case 'set': case 'frozenset': { const keys = list(a).map((k) => key(k, 0, bad)); return new Set(keys.map(pythonEqual)).size === keys.length ? v({ items: keys }) : bad('two equal keys'); }
      case 'parts': return v({ parts: pairs(true), kind: text(CLASS, b), extra: inner(c) });
      case 'object': return v({ fields: pairs(true), class: text(CLASS, b) });
      case 'enum': return v({ class: text(CLASS), name: text(/./s, b) });
      case 'global': return v({ name: text(CLASS) });
      case 'decimal': return v({ text: text(/^.{1,30103}$/s) });
      case 'date': return v({ text: text(/^\d{4}-\d\d-\d\d$/) });
      case 'datetime': if (c !== null) text(/./s, c); return isInt(b, 0, 1) ? v({ text: text(/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?$/), fold: b, zone: c }) : bad('wrong datetime');
      case 'timedelta': return isInt(a, -BIG) && isInt(b, 0, 86399) && isInt(c, 0, 999999) ? v({ days: a, seconds: b, microseconds: c }) : bad('wrong timedelta');
      case 'path': return v({ kind: text(/^(PosixPath|PurePosixPath|PureWindowsPath)$/), text: text(/^/, b) });
      case 'torch.device': return v({ text: text(/^[a-z]+(:\d+)?$/) });
      case 'torch.dtype': return v({ text: text(/^(bool|(float|bfloat|complex|bcomplex|int|uint|qint|quint|bits)\d[a-z0-9_]{0,24})$/) });
      case 'torch.layout': return v({ text: text(/^(strided|sparse_(coo|csr|csc|bsr|bsc)|jagged|_mkldnn)$/) });
      case 'torch.memory_format': return v({ text: text(/^(contiguous_format|preserve_format|channels_last(_3d)?)$/) });
      case 'torch.qscheme': return v({ text: text(/^per_(tensor|channel)_(affine|symmetric|affine_float_qparams)$/) });
      default: return v({ text: text(/^/) }); // numpy.str_
    }
  }
  /** §A checkpoint, complete: the files that are missing or have a wrong size, and those that are only at a remote. */
  missing() {
    const missing = [], remote = [];
    let elsewhere = null;
    try { elsewhere = smallFile(path.join(this.dir, 'elsewhere.json'), 'ckstore-elsewhere'); } catch { /* unreadable: it lists nothing */ }
    this.remotes = Array.isArray(elsewhere?.remotes) && elsewhere.remotes.length ? elsewhere.remotes.map((r) => r.name) : null;
    this.stamped = true;
    for (const [d, size] of this.files ?? this.m.blobs) {
      const stat = fs.lstatSync(path.join(this.dir, 'blobs', d), { bigint: true, throwIfNoEntry: false });
      if (stat) { if (!stat.isFile() || Number(stat.size) !== size) missing.push(d); else this.stamped &&= isStamp(stat.mtimeNs); }
      else (this.remotes ? remote : missing).push(d);
    }
    return { missing, remote };
  }
  /** §damaged.json: its presence is the mark. */
  get marked() { return fs.lstatSync(path.join(this.dir, 'damaged.json'), { throwIfNoEntry: false }) !== undefined; }
  /** §Health */
  get unhealthy() { return (this.m.health?.nonfinite ?? []).some(([, nan, inf, usual]) => nan > 0 || inf > usual); }
  /** §annotations.json: the metrics of the manifest and the later ones, and the notes. */
  annotations() {
    const a = smallFile(path.join(this.dir, 'annotations.json'), 'ckstore-annotations', 16 * MIB);
    return { metrics: { ...this.m.metrics, ...a?.metrics }, notes: a?.notes ?? [] };
  }
  /** A range of a file of `blobs/`, not yet compared with a digest. */
  file(d, size, offset, length) {
    if (this.remotes === undefined) this.missing();
    return readFile(path.join(this.dir, 'blobs', d), 2 ** 31, size, offset, length)
      ?? refuse(`${this.dir}: blob ${d} is ${this.remotes ? `only at the remotes ${this.remotes.join(', ')}` : 'missing'}`);
  }
  /** §e: a whole plain blob, read or decoded, compared with its digest. Up to 1 GiB of them are kept. */
  plain(d) {
    if (!this.decoded.has(d)) {
      const e = this.encoded.get(d), name = e?.file ?? d;
      let bytes = this.file(name, this.files.get(name));
      need(digestOf(this.algo, bytes) === name, `${this.dir}: file ${name} is damaged`);
      if (e) try { bytes = decodeContainer(bytes, d, e, (b) => this.plain(b)); } catch (x) { if (!(x instanceof TypeError)) throw x; refuse(`the encoded file of ${d}: ${x.message}`); }
      need(!e || digestOf(this.algo, bytes) === d, `${this.dir}: blob ${d} does not decode to its bytes`);
      this.decoded.set(d, bytes);
      let total = [...this.decoded.values()].reduce((n, x) => n + x.length, 0);
      for (const [k, x] of this.decoded) if (total > 2 ** 30 && k !== d) { this.decoded.delete(k); total -= x.length; }
    }
    return this.decoded.get(d);
  }
  /** §manifest.json: the bytes of one extent, compared with the digest of the piece. */
  piece(i, [d, blob, offset, length]) {
    const where = `${d} ${blob} ${offset} ${length}`, [name, size] = this.m.blobs[blob];
    if (this.last?.where !== where) { // the last piece is kept: a tensor of zeros is one piece, many times
      const bytes = this.encoded?.has(name) ? this.plain(name).subarray(offset, offset + length) : this.file(name, size, offset, length);
      if (digestOf(this.algo, bytes) !== d) {
        const names = this.leaves.filter((l) => l.storage === i).map((l) => l.name);
        refuse(`${this.m.run}@${this.m.step} is damaged: ${names.join(', ') || `storage ${i}`}: piece ${d} at ${offset} of blob ${name}`);
      }
      this.last = { where, bytes };
    }
    return this.last.bytes;
  }
  /** The verified bytes `start` to `end` of a storage without a tiling, as parts. */
  * read(i, start = 0, end = this.m.storages[i][0]) {
    let at = 0;
    for (const extent of this.m.storages[i][1]) {
      if (at >= end) return;
      if (at + extent[3] > start) yield this.piece(i, extent).subarray(Math.max(0, start - at), end - at);
      at += extent[3];
    }
  }
  /** A storage in memory. With a tiling (§Shards) this is the row-major tensor, not the concatenation of the extents. */
  memory(i) {
    let out = this.shared.get(i)?.deref();
    if (out) return out;
    const [size, extents, tiling] = this.m.storages[i];
    afford(size, `storage ${i}`);
    out = Buffer.allocUnsafeSlow(size);
    let to = 0;
    if (!tiling) for (const part of this.read(i)) { out.set(part, to); to += part.length; }
    else {
      const strides = rowMajor(tiling[0]);
      extents.forEach((extent, k) => {
        const [offsets, sizes] = tiling[1][k], block = this.piece(i, extent), row = sizes.at(-1);
        let from = 0;
        const walk = (d, at) => {
          at += offsets[d] * strides[d];
          if (d === sizes.length - 1) { out.set(block.subarray(from, from + row), at); from += row; }
          else for (let n = 0; n < sizes[d]; n++) walk(d + 1, at + n * strides[d]);
        };
        walk(0, 0);
      });
    }
    this.shared.set(i, new WeakRef(out));
    return out;
  }
  /** §damaged.json, latest-valid: every blob and every different piece is compared with its digest. */
  verify() {
    const { missing, remote } = this.missing();
    need(!missing.length, `${this.dir}: blob ${missing[0]} is missing or has another size`);
    for (const [d, size] of this.m.blobs) if (!remote.includes(d)) {
      if (this.files) this.plain(d); else need(digestOf(this.algo, this.file(d, size)) === d, `${this.dir}: blob ${d} is damaged`);
    }
    for (const d of this.files?.keys() ?? []) need(remote.includes(d) || digestOf(this.algo, this.file(d, this.files.get(d))) === d, `${this.dir}: file ${d} is damaged`);
    const done = new Set();
    this.m.storages.forEach(([, extents], i) => extents.forEach((x) => { const k = x.join(); if (!done.has(k)) { done.add(k); this.piece(i, x); } }));
    return remote.length === 0;
  }
  /** §Files: the rules for the list of files. */
  checkFiles(bad) {
    const kinds = new Map(), used = new Set();
    for (const f of this.m.files ?? []) {
      const bytes = isString(f.path) ? fileBytes(f.path) : bad('a file without a path'), names = f.path.split('/'), at = bytes.toString('latin1');
      if (bytes.length > 4000 || names.length > 257 || kinds.has(at)) bad(`path ${quote(f.path)} is too long or occurs twice`);
      for (const n of names) if (n === '' || n === '.' || n === '..' || fileBytes(n).length > 255 || /[\0-\x1f\x7f]/.test(n)) bad(`path ${quote(f.path)} is not safe`);
      if (f.kind !== 'symlink' ? !isInt(f.mode, 0, 0o777) : !isString(f.target) || !f.target || [...f.target].length > 4096 || f.target.includes('\0')) bad(`file ${quote(f.path)} is malformed`);
      if (!['file', 'directory', 'symlink'].includes(f.kind)) bad(`unknown kind of file ${f.kind}`);
      if (f.mtime !== undefined && !(isString(f.mtime) && /^-?\d{1,29}$/.test(f.mtime))) bad('wrong mtime');
      if (f.kind === 'file') for (const s of Array.isArray(f.storages) ? f.storages : bad('a file without storages')) {
        if (!isInt(s, 0, this.m.storages.length - 1) || used.has(s) || this.m.storages[s][2]) bad(`file ${quote(f.path)}: wrong storage`);
        used.add(s);
      }
      kinds.set(at, f.kind);
    }
    for (const at of kinds.keys()) if (at.includes('/') && kinds.get(at.slice(0, at.lastIndexOf('/'))) !== 'directory') bad('a file without its directory');
  }
  /** §Files: extract into a folder that is new or empty. Directories come first and symlinks last, so nothing is written through one. */
  extract(folder) {
    need(this.m.files, `${this.dir}: has no files`);
    fs.mkdirSync(folder, { recursive: true });
    need(fs.readdirSync(folder).length === 0, `${folder}: is not empty`);
    const root = Buffer.from(fs.realpathSync(folder) + path.sep), at = (f) => Buffer.concat([root, fileBytes(f.path)]), of = (kind) => this.m.files.filter((f) => f.kind === kind);
    const time = (f, p) => { if (f.mtime !== undefined) fs.utimesSync(p, new Date(), Number(f.mtime) / 1e9); }; // Node's times are doubles of seconds
    const directories = of('directory').sort((a, b) => a.path.split('/').length - b.path.split('/').length);
    for (const f of directories) fs.mkdirSync(at(f), 0o700);
    for (const f of of('file')) {
      const fd = fs.openSync(at(f), fs.constants.O_WRONLY | fs.constants.O_CREAT | fs.constants.O_EXCL | fs.constants.O_NOFOLLOW, 0o600);
      try {
        for (const s of f.storages) for (const part of this.read(s)) for (let n = 0; n < part.length;) n += fs.writeSync(fd, part, n);
        fs.fchmodSync(fd, f.mode);
      } finally { fs.closeSync(fd); }
      time(f, at(f));
    }
    for (const f of of('symlink')) fs.symlinkSync(fileBytes(f.target), at(f));
    for (const f of directories.reverse()) { fs.chmodSync(at(f), f.mode); time(f, at(f)); }
    return this.m.files.length;
  }
}
const isStamp = (ns) => ns % 1000000000n === 271828000n || ns === 10n ** 18n || (ns % 1000000000n === 0n && ns / 1000000000n % 300n === 38n); // §Blobs, Stamps

// §Nodes: the elements after the type of each node
const NODES = { int: 1, float: 1, complex: 2, bytes: 1, numpy: 2, list: 1, tuple: 1, deque: 2, dict: 1, defaultdict: 2, counter: 1, odict: 2, set: 1, frozenset: 1,
  parts: 3, object: 2, enum: 2, global: 1, bytearray: 1, 'io.BytesIO': 1, decimal: 1, date: 1, datetime: 3, timedelta: 3, path: 2, 'torch.Size': 1, 'torch.device': 1,
  'torch.dtype': 1, 'torch.layout': 1, 'torch.memory_format': 1, 'torch.qscheme': 1, 'numpy.str_': 1, leaf: 1 };
const CLASS = /^.{1,500}$/su;
const base64 = (s, bad) => { const b = Buffer.from(isString(s) ? s : bad('not base64'), 'base64'); return b.toString('base64') === s ? b : bad('not base64'); };
/** §Numbers, §Nodes: an integer outside ±2^53. */
const integer = (s, bad) => { const n = isString(s) && s.length <= 30104 && /^-?[1-9]\d*$/.test(s) ? BigInt(s) : bad('wrong int'); return n > BIG || n < -BIG ? n : bad('an int within 2^53'); };
/** §Nodes: `x` of a float. */
function float(x, bad) {
  if (x instanceof Float) return x;
  if (typeof x === 'number') return new Float(x);
  if (!isString(x) || !/^[0-9a-f]{16}$/.test(x)) bad('wrong float');
  const value = Buffer.from(x, 'hex').readDoubleBE();
  return Number.isFinite(value) ? bad('the bits of a finite float') : new Float(value, x);
}
/** §Keys */
function key(k, depth, bad) {
  if (k === null || ['string', 'number', 'boolean'].includes(typeof k)) return k;
  if (!Array.isArray(k) || k.length !== 2) bad('wrong key');
  if (k[0] === 'int') return integer(k[1], bad);
  if (k[0] === 'float') { const f = float(k[1], bad); return Number.isNaN(+f) ? bad('a key that is NaN') : f; }
  if (k[0] !== 'tuple' || depth >= 8 || !Array.isArray(k[1])) bad('wrong key');
  return new Value('tuple', { items: k[1].map((x) => key(x, depth + 1, bad)) });
}
/** §Keys: a text that is the same for keys that Python compares as equal. */
function pythonEqual(k) {
  if (k === null) return 'None';
  if (isString(k)) return `s${quote(k)}`;
  if (k instanceof Value) return `(${k.items.map(pythonEqual).join(',')})`;
  return typeof k === 'bigint' || !Number.isInteger(+k) ? String(k) : BigInt(+k).toString();
}
/** §Names: the text of a key in brackets. */
function keyText(k) {
  if (isString(k)) return quote(k);
  if (k instanceof Value) return `(${k.items.map(keyText).join(', ')}${k.items.length === 1 ? ',' : ''})`;
  return k instanceof Float ? pythonFloat(k) : { null: 'None', true: 'True', false: 'False' }[k] ?? String(k);
}
const nameText = (k) => (k === '' ? '\\0' : k.replace(/[\\.[\]]/g, '\\$&'));
/** §Files: the bytes of a path, in which U+DC80 to U+DCFF are the bytes 0x80 to 0xFF. */
function fileBytes(text) {
  const out = [...text].map((c) => { const n = c.codePointAt(0); return n >= 0xdc80 && n <= 0xdcff ? Buffer.from([n - 0xdc00]) : n >= 0xd800 && n <= 0xdfff ? refuse('a lone surrogate in a path') : Buffer.from(c); });
  return Buffer.concat(out);
}
/** §Shards: the blocks form a grid: each once, and in each dimension the ranges within a group touch and fill it. */
function checkGrid(tiling, extents, size, bad) {
  const [shape, blocks] = Array.isArray(tiling) ? tiling : [], ints = (l, least) => Array.isArray(l) && l.length === shape.length && l.every((n) => isInt(n, least));
  if (!Array.isArray(shape) || !shape.length || shape.length > 64 || !ints(shape, 0) || !Array.isArray(blocks) || blocks.length !== extents.length) bad('wrong tiling');
  const product = (l) => l.reduce((p, n) => p * BigInt(n), 1n);
  if (product(shape) !== BigInt(size)) bad('the tiling has another size');
  blocks.forEach(([offsets, sizes], i) => { if (!ints(offsets, 0) || !ints(sizes, 1) || product(sizes) !== BigInt(extents[i][3])) bad('wrong block'); });
  const check = (group, d) => {
    if (d === shape.length) return group.length === 1 || bad('a block twice');
    const ranges = new Map();
    for (const b of group) { const r = `${b[0][d]} ${b[1][d]}`; if (ranges.has(r)) ranges.get(r).push(b); else ranges.set(r, [b]); }
    let at = 0;
    for (const g of [...ranges.values()].sort((x, y) => x[0][0][d] - y[0][0][d])) {
      if (g[0][0][d] !== at) bad('the blocks are not a grid');
      at += g[0][1][d];
      check(g, d + 1);
    }
    return at === shape[d] || bad('the blocks do not fill the tensor');
  };
  if (blocks.length) check(blocks, 0);
}

// ---------------------------------------------------------------------------------------------------------------- §e The container
/** §e Tiles: one zstd frame that states `size`. */
function zstd(bytes, size) {
  need(bytes.length >= 6 && bytes.readUInt32LE(0) === 0xfd2fb528, 'not a zstd frame');
  const flags = bytes[4], single = (flags >> 5) & 1, at = 5 + !single + [0, 1, 2, 4][flags & 3], width = [single, 2, 4, 8][flags >> 6];
  need(width && at + width <= bytes.length, 'a zstd frame without its size');
  const stated = width === 8 ? Number(bytes.readBigUInt64LE(at)) : bytes.readUIntLE(at, width) + (width === 2 ? 256 : 0);
  need(stated === size, 'a zstd frame of another size');
  try { const out = decompress(bytes); need(out.length === size, 'a zstd frame of another size'); return out; } catch (e) { return refuse(`zstd: ${e.message}`); }
}
const f32 = new Float32Array(1), u32 = new Uint32Array(f32.buffer);
/** §e Predictions: the bits of a float32 as bfloat16 or float16, ties to even. */
const bf16 = (u) => ((u & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : (u + 0x7fff + ((u >>> 16) & 1)) >>> 16);
export function fp16(u) {
  const sign = (u >>> 16) & 0x8000, a = u & 0x7fffffff;
  if (a > 0x7f800000) return 0x7e00;
  if (a >= 0x477ff000) return sign | 0x7c00;
  if (a < 0x38800000) { u32[0] = a; f32[0] += 0.5; return sign | (u32[0] & 0xffff); } // float32 addition rounds to 2^-24, the step of subnormals
  return sign | ((a + 0xfff + ((a >>> 13) & 1) - 0x38000000) >>> 13);
}
/** §e The container: the plain blob of an encoded file. */
export function decodeContainer(buf, digest, { size, bases }, plainOf) {
  const bad = (why) => refuse(`the encoded file of ${digest}: ${why}`), take = (n) => { if (at + n > buf.length) bad('too short'); at += n; return buf.subarray(at - n, at); };
  let at = 0;
  if (take(8).toString('latin1') !== 'ckenc-1\n') bad('not a container');
  const length = take(4).readUInt32LE();
  if (length > MIB) bad('a header of more than 1 MiB');
  const head = parseJSON(take(length), `header of ${digest}`);
  if (head.plain !== digest || head.bytes !== size || !Array.isArray(head.bases) || head.bases.length > 256 || canonical(head.bases) !== canonical(bases)) bad('the header differs from the encoding');
  let total = 0, tiles = 0;
  for (const r of Array.isArray(head.runs) ? head.runs : bad('no runs')) {
    if (!(r.length === 2 || r.length === 5) || ![1, 2, 4, 8].includes(r[1]) || !isInt(r[0], 1) || r[0] % r[1]) bad('wrong run');
    if (r.length === 5 && (!['same', 'bf16', 'fp16'].includes(r[2]) || (r[2] !== 'same' && r[1] !== 2) || !isInt(r[3], 0, bases.length - 1) || !isInt(r[4], 0, 2 ** 31))) bad('wrong run');
    total += r[0]; tiles += Math.ceil(r[0] / MIB);
  }
  if (total !== size) bad('the runs have another size');
  const table = take(4 * tiles);
  let sum = 0;
  for (let i = 0; i < tiles; i++) sum += table.readUInt32LE(4 * i) & 0xffffff;
  if (at + sum !== buf.length) bad('its tiles have another size');
  afford(size, `blob ${digest}`);
  const out = Buffer.alloc(size), predicted = Buffer.alloc(MIB);
  let to = 0, tile = 0;
  for (const [bytes, width, prediction, b, offset] of head.runs) {
    const base = prediction && plainOf(bases[b]);
    for (let n = 0; n < bytes; n += MIB, tile++) {
      const t = Math.min(MIB, bytes - n), entry = table.readUInt32LE(4 * tile), codec = entry >>> 24, x = out.subarray(to, to + t);
      if ((entry & 0xffffff) > t || codec > 5 || (!base && codec > 1 && codec < 5)) bad('wrong tile');
      let p = null;
      if (base) {
        const from = prediction === 'same' ? offset + n : offset + 2 * n, end = from + (prediction === 'same' ? t : 2 * t);
        if (end > base.length) bad('a run outside its base');
        p = base.subarray(from, end);
        if (prediction !== 'same') {
          const convert = prediction === 'bf16' ? bf16 : fp16;
          for (let i = 0; i < t; i += 2) predicted.writeUInt16LE(convert(p.readUInt32LE(2 * i)), i);
          p = predicted.subarray(0, t);
        }
      }
      decodeTile(codec, take(entry & 0xffffff), x, p, width, bad);
      to += t;
    }
  }
  return out;
}
/** §e Tiles: decode the stored bytes `s` into `x`, with the prediction `p`. */
function decodeTile(codec, s, x, p, width, bad) {
  const count = x.length / width;
  let at = 0;
  const take = (n) => { if (at + n > s.length) bad('a tile is too short'); at += n; return s.subarray(at - n, at); }, number = () => take(4).readUInt32LE();
  const planes = (n) => Array.from({ length: width }, number).map((l) => (l === 0 ? Buffer.alloc(n) : l === n ? take(l) : zstd(take(l), n)));
  // (d xor B) - B is a sum of signed bytes, so the sum with p is computed byte by byte with a carry, for any width and without BigInt
  const difference = (places, n) => {
    const rows = planes(n);
    for (let i = 0; i < n; i++) {
      const e = (places ? places[i] : i) * width;
      for (let b = 0, carry = 0; b < width; b++) { const sum = (rows[b][i] ^ 0x80) - 0x80 + p[e + b] + carry; x[e + b] = sum & 255; carry = sum >> 8; }
    }
  };
  if (codec === 0) { if (s.length !== x.length) bad('a raw tile has another size'); x.set(take(s.length)); }
  if (codec === 1) planes(count).forEach((row, b) => { for (let i = 0; i < count; i++) x[i * width + b] = row[i]; });
  if (codec === 2) difference(null, count);
  if (codec === 5) {
    if (width !== 2 && width !== 4) bad('a tile of floats has another width');
    planes(count).forEach((row, b) => { for (let i = 0; i < count; i++) x[i * width + b] = row[i]; });
    for (let i = width - 2; i < x.length; i += width) { const e = x[i + 1], m = x[i]; x[i + 1] = (m & 0x80) | (e >> 1); x[i] = ((e & 1) << 7) | (m & 0x7f); }
  }
  if (codec === 3 || codec === 4) x.set(p);
  if (codec === 3) {
    const [differing, n, stored] = [number(), number(), number()];
    if (n > count || differing < 1 || differing > n) bad('wrong steps');
    const steps = stored === n ? take(n) : zstd(take(stored), n), places = new Uint32Array(differing);
    let place = 0, k = 0;
    for (const step of steps) {
      place += step;
      if (step === 255) continue;
      if (place >= count || k === differing) bad('wrong steps');
      places[k++] = place++;
    }
    if (k !== differing) bad('wrong steps');
    difference(places, differing);
  }
  if (at !== s.length) bad('bytes after the end of a tile');
}

// ---------------------------------------------------------------------------------------------------------------- the store
const RUN = /^(?!\.{1,2}$)[A-Za-z0-9._-]{1,100}$/, DIRECTORY = /^(0|[1-9]\d{0,15})(?:\.([0-9a-f]{10,64})(?:\.([1-9]\d{0,5}))?)?$/;
const isTag = (t) => RUN.test(t) && !/^\.|^\d+$|^latest(-valid|-healthy)?$|^(xxh3-|blake3-)?[0-9A-Fa-f]{6,}$/.test(t);

/** §The store, §store.json, §Names of checkpoints, §Tags, §Pins */
export class Store {
  constructor(root) {
    this.root = root;
    this.reports = [];
    const s = this.settings = smallFile(path.join(root, 'store.json'), 'ckstore-store') ?? refuse(`${root}: not a store, it has no store.json`);
    need(s.requires === undefined || (Array.isArray(s.requires) && s.requires.every(isString)), `${root}/store.json: wrong requires`);
    for (const r of s.requires ?? []) if (!['checkpoint-ids', 'elsewhere'].includes(r)) throw new Newer(`${root}/store.json: requires ${quote(r)}, needs a newer reader`);
    this.algo = pick({ xxh3_128: 'xxh3', blake3: 'blake3' }, s.hash) ?? refuse(`${root}/store.json: unknown hash ${s.hash}`);
    need(isInt(s.chunk_bytes, MIB, 1024 * MIB) && s.chunk_bytes % MIB === 0, `${root}/store.json: wrong chunk_bytes`);
    this.directories = [];
    for (const run of entries(path.join(root, 'checkpoints'))) if (RUN.test(run.name) && run.isDirectory()) {
      if (!run.isDirectory()) { this.reports.push(`checkpoints/${run.name} is not a directory`); continue; }
      for (const e of entries(path.join(root, 'checkpoints', run.name))) {
        const form = DIRECTORY.exec(e.name);
        if (form && +form[1] <= BIG && BigInt(form[1]) <= BIG) this.directories.push(this.directory(run.name, e, form));
      }
    }
    this.rank();
    this.readTags();
    this.readPins();
  }
  /** §Names of checkpoints: one directory; its name is compared with its manifest. A draft name has the generation -1. */
  directory(run, entry, [, step, short, generation]) {
    const d = { run, step: +step, name: entry.name, short, generation: short ? +(generation ?? 0) : -1, path: path.join(this.root, 'checkpoints', run, entry.name), whole: false };
    try {
      need(entry.isDirectory(), `${d.path}: not a directory`);
      const c = new Checkpoint(d.path);
      need(c.m.run === run && c.m.step === d.step && (!short || c.id.split('-')[1].startsWith(short)), `${d.path}: it contains ${c.m.run}@${c.m.step} ${c.id}`);
      Object.assign(d, { checkpoint: c, id: c.id, foreign: c.algo !== this.algo, ...c.missing(), marked: c.marked });
      d.whole = d.missing.length === 0;
      d.valid = d.whole && !d.marked && c.stamped;
      if (!d.whole) d.problem = `${d.path}: blob ${d.missing[0]} is missing or has another size`;
    } catch (e) { if (!(e instanceof Refused) && !e.code) throw e; d.problem = e.message; d.newer = e instanceof Newer; }
    if (d.foreign) this.reports.push(`${d.path} was copied from another store, its id is ${d.id}`);
    else if (d.problem) this.reports.push(d.problem);
    return d;
  }
  /** §Which directory counts, §Order of commits */
  rank() {
    const numbers = this.directories.filter((d) => d.checkpoint && !d.foreign).map((d) => d.checkpoint.m.sequence).sort((a, b) => a - b);
    this.beyond = numbers.find((n, i) => n - (numbers[i - 1] ?? 0) > 2 ** 32) ?? Infinity;
    const groups = new Map(), steps = new Map(), mine = this.directories.filter((d) => !d.foreign);
    for (const d of [...mine.filter((x) => x.id), ...mine.filter((x) => !x.id)]) {
      const id = d.id ?? mine.find((o) => o.id && d.short && o.run === d.run && o.step === d.step && o.id.split('-')[1].startsWith(d.short))?.id ?? `?${d.short}`;
      const k = `${d.run}@${d.step} ${id}`;
      if (groups.has(k)) groups.get(k).push(d); else groups.set(k, [d]);
    }
    this.checkpoints = [...groups.values()].map((ds) => {
      ds.sort((a, b) => b.generation - a.generation);
      const d = ds.find((x) => x.whole && !x.marked) ?? ds.find((x) => x.whole) ?? ds[0];
      return { ...d, directories: ds, counts: d.checkpoint ? d.checkpoint.m.sequence < this.beyond : undefined };
    });
    for (const c of this.checkpoints) {
      const k = `${c.run}@${c.step}`, best = steps.get(k);
      if (!best || [c.whole - best.whole, !!c.checkpoint - !!best.checkpoint, this.later(c, best)].find((x) => x) > 0) steps.set(k, c);
    }
    for (const c of this.checkpoints) c.superseded = steps.get(`${c.run}@${c.step}`) !== c;
    this.steps = steps;
    this.checkpoints.sort((a, b) => this.later(a, b) || a.step - b.step);
  }
  /** §Order of commits: (`sequence`, `created`, id); a number that does not count comes first. */
  later(a, b) {
    const of = ({ checkpoint: c }) => (c ? [+(c.m.sequence < this.beyond), c.m.sequence, c.m.created, c.id] : [-1, 0, '', '']), [x, y] = [of(a), of(b)];
    for (let i = 0; i < 4; i++) if (x[i] !== y[i]) return x[i] < y[i] ? -1 : 1;
    return 0;
  }
  /** §Tags: `doubtful` and `dangling` are reported, not refused. */
  readTags() {
    this.tags = new Map();
    for (const e of entries(path.join(this.root, 'refs'))) if (!e.name.startsWith('.')) {
      const text = isTag(e.name) && e.isSymbolicLink() ? fs.readlinkSync(path.join(this.root, 'refs', e.name), 'latin1') : '';
      const twice = /^\.\.\/checkpoints\/([^/]+)\/\.\.\/\1\/([^/]+)\/\.\.\/\2$/.exec(text), once = /^\.\.\/checkpoints\/([^/]+)\/(0|[1-9]\d*)$/.exec(text);
      const [, run, name] = twice ?? once ?? [], form = name && DIRECTORY.exec(name);
      let found = null;
      if (form && RUN.test(run)) {
        const has = (c, d) => d.run === run && d.step === +form[1] && (form[2] ? d.short === form[2] : d.generation === -1);
        found = this.checkpoints.find((c) => c.directories.some((d) => has(c, d))) ?? (form[2] ? null : this.steps.get(`${run}@${form[1]}`)) ?? null;
      }
      this.tags.set(e.name, { checkpoint: found, state: found ? 'ok' : form && RUN.test(run) && twice ? 'dangling' : 'doubtful' });
    }
  }
  /** §Pins */
  readPins() {
    this.pins = new Map();
    for (const e of entries(path.join(this.root, 'pins'))) if (e.name.endsWith('.json') && !e.name.startsWith('.') && RUN.test(e.name.slice(0, -5))) {
      try {
        const p = smallFile(path.join(this.root, 'pins', e.name), 'ckstore-pin') ?? refuse(`pins/${e.name}: missing`);
        const found = this.checkpoints.find((c) => c.run === p.run && c.step === p.step && c.id === p.id);
        this.pins.set(e.name.slice(0, -5), { ...p, checkpoint: found ?? null, expired: p.expires !== null && Date.parse(p.expires) <= Date.now() });
      } catch (err) { if (!(err instanceof Refused)) throw err; this.pins.set(e.name.slice(0, -5), { problem: err.message }); this.reports.push(err.message); }
    }
  }
  /** §Order of commits, §damaged.json, §Health: `latest`, `latest-valid` and `latest-healthy`, of one run or of all. */
  latest(which, run) {
    const all = this.checkpoints.filter((c) => !c.superseded && c.checkpoint && (run === undefined || c.run === run)).sort((a, b) => this.later(b, a));
    const newer = this.checkpoints.find((c) => c.newer); // §Newer manifests
    if (newer) throw new Newer(newer.problem);
    if (which === 'latest') return all.find((c) => c.whole);
    return all.find((c) => c.whole && !c.marked && !(which === 'latest-healthy' && c.checkpoint.unhealthy) && verifies(c.checkpoint));
  }
  /** A checkpoint by RUN@STEP, RUN@latest, latest, a tag, or an id or its first digits. */
  find(ref) {
    const [, run, rest] = /^([^@]+)@(.+)$/.exec(ref) ?? [], word = rest ?? ref, short = /^(?:(?:xxh3|blake3)-)?([0-9a-f]{6,64})$/.exec(ref);
    let found;
    if (/^latest(-valid|-healthy)?$/.test(word)) found = this.latest(word, run);
    else if (run) found = this.steps.get(ref);
    else if (this.tags.has(ref)) found = this.tags.get(ref).checkpoint;
    else if (short) { const hits = this.checkpoints.filter((c) => c.id?.split('-')[1].startsWith(short[1])); need(hits.length < 2, `${ref} is not unique`); [found] = hits; }
    if (!found) refuse(`${this.root}: has no checkpoint ${ref}`);
    if (!found.whole) throw new (found.newer ? Newer : Refused)(found.problem);
    return found;
  }
}
function verifies(c) { try { return c.verify(); } catch (e) { if (e instanceof Refused) return false; throw e; } }
export const openStore = (root) => new Store(root);
export const openCheckpoint = (dir) => new Checkpoint(dir);

// ---------------------------------------------------------------------------------------------------------------- the command
/** The plain values of a state as JSON: dicts as pairs if a key is not a string, other values as {type, …}. */
export function plainJSON(v) {
  if (v instanceof Map) return [...v.keys()].every(isString) ? Object.fromEntries([...v].map(([k, x]) => [k, plainJSON(x)])) : { type: 'dict', items: [...v].map(([k, x]) => [plainJSON(k), plainJSON(x)]) };
  if (Array.isArray(v)) return v.map(plainJSON);
  if (v instanceof Float) return v.bits ? { type: 'float', bits: v.bits } : +v;
  if (typeof v === 'bigint') return { type: 'int', text: String(v) };
  if (Buffer.isBuffer(v)) return v.toString('base64');
  if (v instanceof Value) return Object.fromEntries(Object.entries(v).map(([k, x]) => [k, plainJSON(x)]));
  return v;
}
function main([command, root, ref, folder]) {
  const print = (v) => console.log(JSON.stringify(v, null, 1)), store = root && openStore(root);
  if (command === 'list' && root && !ref) {
    const latest = store.latest('latest');
    for (const c of store.checkpoints) {
      const tags = [...store.tags].filter(([, t]) => t.checkpoint === c).map(([t]) => t), pins = [...store.pins].filter(([, p]) => p.checkpoint === c).map(([p]) => p);
      const words = [c.newer ? 'unknown version' : !c.checkpoint ? 'unreadable' : c.marked || c.counts === false ? 'damaged' : c.valid ? 'valid' : c.whole ? 'whole, not stamped' : 'incomplete',
        c.remote?.length && 'remote-only', c.superseded && 'superseded', c.generation < 0 && 'draft name', c.generation > 0 && `generation ${c.generation}`, c.checkpoint?.files && 'compacted',
        c.checkpoint?.unhealthy && 'unhealthy', ...tags.map((t) => `tag ${t}`), ...pins.map((p) => `pin ${p}`), c === latest && 'latest'];
      console.log(`${c.run}@${c.step}\t${c.id ?? c.name}\t${words.filter(Boolean).join(', ')}`);
    }
    for (const [t, { state }] of store.tags) if (state !== 'ok') console.log(`tag ${t}: ${state}`);
    for (const r of store.reports) console.error(`warning: ${r}`);
  } else if (command === 'show' && ref && !folder) {
    const { checkpoint: c, marked } = store.find(ref), tensors = {};
    if (marked) console.error(`warning: ${c.dir} is marked as damaged`);
    for (const l of c.leaves) tensors[l.name] = { kind: l.kind, dtype: l.dtype, shape: l.shape, sha256: l.sha256(), text: l.kind === 'str' ? l.text() : undefined };
    print({ id: c.id, run: c.m.run, step: c.m.step, ...plainJSON(c.annotations()), tensors, state: plainJSON(c.state), files: c.m.files });
  } else if (command === 'extract' && folder) console.log(`${store.find(ref).checkpoint.extract(folder)} files`);
  else refuse('usage: reader.mjs list STORE | show STORE RUN@STEP | extract STORE RUN@STEP FOLDER');
}
if (process.argv[1] && import.meta.url === pathToFileURL(fs.realpathSync(process.argv[1])).href) {
  try { main(process.argv.slice(2)); } catch (e) { if (!(e instanceof Refused) && !e.code) throw e; console.error(`error: ${e.message}`); process.exitCode = 1; }
}
