/* link.js: a run as the hash of an address, deflated and in base64url. Browsers never send the hash to a server. */
(function (S) {
  "use strict";
  const KEY = "#trace=";
  const MOST = 8192; // characters of a hash; longer ones are neither made nor read
  const DAMAGED = "This link is damaged or cut off, so its run cannot be shown. Copy it again, whole.";

  const piped = async (bytes, stream) => new Uint8Array(await new Response(new Blob([bytes]).stream().pipeThrough(stream)).arrayBuffer());

  async function packed(text) {
    const bytes = await piped(text, new CompressionStream("deflate-raw"));
    const binary = Array.from(bytes, (byte) => String.fromCharCode(byte)).join("");
    return btoa(binary).replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "");
  }

  async function unpacked(code) {
    const bytes = Uint8Array.from(atob(code.replaceAll("-", "+").replaceAll("_", "/")), (char) => char.charCodeAt(0));
    const text = await piped(bytes, new DecompressionStream("deflate-raw"));
    return new TextDecoder("utf-8", { fatal: true }).decode(text);
  }

  /* FNV-1a. Raw deflate has no check of its own, and a changed figure would look like any other. */
  function checkSum(code) {
    let sum = 0x811c9dc5;
    for (const char of code) sum = Math.imul(sum ^ char.charCodeAt(0), 0x01000193) >>> 0;
    return sum.toString(36);
  }

  async function hashed(text) {
    const code = await packed(text);
    return `${KEY}${code}.${checkSum(code)}`;
  }

  /* The trace without its lists of likely tokens; of each law from which a token came, that token's own line stays. */
  function withoutTables(text) {
    const lean = (record) => {
      if (record.kind === "meta") return { ...record, tables: false };
      if (record.kind !== "round") return record;
      const drafts = record.drafts.map(({ top, ...draft }) => draft);
      const own = ({ id, top = [] }) => top.filter((entry) => entry[0] === id);
      return { ...record, drafts, next: record.next && { ...record.next, top: own(record.next) } };
    };
    const lines = text.split("\n").filter((line) => line.trim());
    return lines.map((line) => `${JSON.stringify(lean(JSON.parse(line)))}\n`).join("");
  }

  /* {hash, isWhole}, or {length} of the shortest there is if it is too long. */
  async function hashOf(text) {
    const whole = await hashed(text);
    if (whole.length <= MOST) return { hash: whole, isWhole: true };
    const lean = await hashed(withoutTables(text));
    return lean.length <= MOST ? { hash: lean, isWhole: false } : { length: lean.length };
  }

  /* The trace in a hash; null if the hash is about something else. */
  async function traceIn(hash) {
    if (!hash.startsWith(KEY)) return null;
    if (hash.length > MOST) {
      const [came, most] = [hash.length, MOST].map((count) => count.toLocaleString("en"));
      throw new S.TraceError(`This link holds ${came} characters; at most ${most} are read. Ask for the trace as a file.`);
    }
    const [code, sum] = hash.slice(KEY.length).split(".");
    let text;
    try {
      if (sum !== checkSum(code)) throw new RangeError("changed");
      text = await unpacked(code);
    } catch {
      throw new S.TraceError(DAMAGED);
    }
    return S.Trace.read(text);
  }

  S.link = { hashOf, traceIn, MOST, DAMAGED };
})(window.SpecView);
