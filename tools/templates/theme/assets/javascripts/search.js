// The search of the documentation: it finds pages for questions in people's words. The pages of the theme ask it as a
// worker with the theme's own messages; where the site is opened as files, a browser starts no worker and it runs in
// the page. The index is the theme's, and `python -m tools site` adds to it the keywords of each place.
"use strict";
(() => {
  const [SETUP, READY, QUERY, RESULT] = [0, 1, 2, 3]; // mkdocs-material, integrations/search/worker/message
  const STOP = new Set(`a about after all also although am an and another any are as at be been because but by can
    cannot could did do does doing each even every for from get gets getting give gives given go goes had has have having
    here how i if in into is it its itself just let like may me might more most must my need needs no not of off on only
    onto or other others our out over own please really said same say says shall should so some such take takes than that
    the their them then there these they this those to too try trying under until up upon us use used uses using very via
    want wants was way we well were what when where whether which while who whom whose why will with within without would
    yes yet you your`.split(/\s+/));
  // What a word counts in a title, in the title of the page around, in the keywords and in the text of a section.
  const TITLE = 1.6, PAGE = 0.5, KEYWORD = 1.5, TEXT = 1;
  const START = 0.5, NAMED = 0.4; // for a page with every word of the question, and a title with every word
  const COMPOUND = /[\p{L}\p{N}]+(?:[._+-][\p{L}\p{N}]+)*/gu;
  const ENTITIES = { "&lt;": "<", "&gt;": ">", "&amp;": "&", "&quot;": '"', "&#39;": "'" };

  const plain = (html) => html.replace(/<[^>]*>/g, " ").replace(/&(?:lt|gt|amp|quot|#39);/g, (found) => ENTITIES[found]);

  // One form for compile, compiles, compiled, compiling and compilation.
  function stem(word) {
    if (word.length < 4 || /\d/.test(word)) return word;
    let root = word.replace(/ies$/, "y").replace(/([^siu])s$/, "$1");
    for (const end of [/ations?$/, /ing$/, /ed$/, /[ai]ble$/, /ment$/]) {
      const shorter = root.replace(end, "");
      if (shorter !== root && shorter.length > 2 && /[aeiouy]/.test(shorter)) { root = shorter; break; }
    }
    return root.replace(/[ey]$/, "").replace(/([^aeiou])\1$/, "$1");
  }

  // The terms of one word: its own form without separators, and its parts: `torch.compile`, `rms_norm`, `FusedAdamW`.
  function terms(word) {
    if (/^[\d.]+$/.test(word)) return [word];
    const parts = word.replace(/(\p{Ll})(\p{Lu})|(\p{Lu})(?=\p{Lu}\p{Ll})/gu, (_, low, up, before) => before ? `${before}-` : `${low}-${up}`)
      .toLowerCase().split(/[._+-]/).filter(Boolean);
    const whole = stem(word.toLowerCase().replace(/[._+-]/g, ""));
    return parts.length === 1 ? [whole] : [whole, ...parts.map(stem)];
  }

  const words = (text) => text.match(COMPOUND) ?? [];

  function counted(text) {
    const found = new Map();
    for (const word of words(text)) for (const term of terms(word)) found.set(term, (found.get(term) ?? 0) + 1);
    return found;
  }

  class Search {
    constructor(docs) {
      this.places = new Map();
      const pages = new Map();
      for (const doc of docs) {
        const path = doc.location.split("#")[0];
        if (!pages.has(path)) pages.set(path, doc);
        const page = pages.get(path), text = counted(plain(doc.text));
        this.places.set(doc.location, {
          doc, page, text, title: counted(plain(doc.title)), keywords: counted(doc.keywords ?? ""),
          around: page === doc ? new Map() : counted(`${plain(page.title)} ${page.keywords ?? ""}`),
          long: [...text.values()].reduce((sum, count) => sum + count, 0),
        });
      }
      this.all = [...this.places.values()];
      this.usual = this.all.reduce((sum, place) => sum + place.long, 0) / this.all.length;
      this.holders = new Map(); // term -> the places that have it
      for (const place of this.all)
        for (const term of new Set([place.text, place.title, place.keywords].flatMap((field) => [...field.keys()]))) {
          if (!this.holders.has(term)) this.holders.set(term, []);
          this.holders.get(term).push(place);
        }
      this.sorted = [...this.holders.keys()].sort();
    }

    rarity(term) {
      return Math.log(1 + this.all.length / (0.5 + (this.holders.get(term)?.length ?? 0)));
    }

    // The terms that begin with this one, for a word that is still being typed or has another ending.
    *longer(term) {
      let low = 0, high = this.sorted.length;
      while (low < high) { const middle = (low + high) >> 1; if (this.sorted[middle] < term) low = middle + 1; else high = middle; }
      for (; low < this.sorted.length && this.sorted[low].startsWith(term); low += 1) if (this.sorted[low] !== term) yield this.sorted[low];
    }

    // What the question asks for: for each of its words the terms that stand for it, each with a weight.
    asked(question) {
      const given = words(question), wanted = [];
      const some = given.filter((word) => !STOP.has(word.toLowerCase()));
      for (const [at, word] of given.entries()) {
        const stands = new Map(), parts = terms(word), last = at === given.length - 1 && !/\s$/.test(question);
        if (parts.length === 1 && STOP.has(word.toLowerCase()) && some.length) continue;
        if (this.holders.has(parts[0])) stands.set(parts[0], 1);
        else if (parts.length > 1) for (const part of new Set(parts.slice(1))) if (!STOP.has(part) && part.length > 1) wanted.push({ word: part, stands: this.near(part, 1, false) });
        if (!stands.size && parts.length > 1) continue;
        const near = this.near(parts[0], 1, last);
        wanted.push({ word: word.toLowerCase(), stands: near });
        // two words that are written as one elsewhere: multi node, layer norm
        const next = given[at + 1];
        if (next) { const joined = stem((word + next).toLowerCase().replace(/[._+-]/g, "")); if (this.holders.has(joined)) wanted.push({ word: "", stands: new Map([[joined, 1]]) }); }
      }
      return wanted;
    }

    near(term, weight, typing) {
      const stands = new Map();
      if (this.holders.has(term)) stands.set(term, weight);
      if (term.length >= (typing ? 2 : 4) && !/^\d+$/.test(term)) for (const longer of this.longer(term)) stands.set(longer, (this.holders.has(term) ? 0.3 : 0.6) * weight);
      return stands;
    }

    find(question) {
      const asked = this.asked(question), scores = new Map();
      let total = 0;
      for (const { word, stands } of asked) {
        const rarities = [...stands].map(([term, weight]) => weight * this.rarity(term));
        const most = stands.size ? Math.max(...rarities) : this.rarity("");
        if (word) total += most;
        const best = new Map(); // place -> what this word counts there
        for (const [term, weight] of stands)
          for (const place of this.holders.get(term)) {
            const count = place.text.get(term) ?? 0;
            const text = (count / (count + 0.5 + 0.7 * place.long / this.usual)) * TEXT;
            const worth = weight * Math.min(this.rarity(term), most) * (text + (place.title.has(term) ? TITLE : 0) + (place.keywords.has(term) ? KEYWORD : 0) + (place.around.has(term) ? PAGE : 0));
            if (worth > (best.get(place)?.worth ?? 0)) best.set(place, { worth, covered: weight * most, titled: place.title.has(term) ? weight * most : 0 });
          }
        for (const [place, { worth, covered, titled }] of best) {
          if (!scores.has(place)) scores.set(place, { score: 0, covered: 0, titled: 0, words: new Set() });
          const sum = scores.get(place);
          sum.score += worth; if (word) { sum.covered += covered; sum.titled += titled; sum.words.add(word); }
        }
      }
      const found = [...scores].map(([place, { score, covered, titled, words: had }]) => {
        const share = total ? covered / total : 0, named = total ? titled / total : 0;
        const start = place.page === place.doc ? 1 + START * share ** 3 : 1;
        return { place, score: score * (0.1 + share ** 1.25) * (1 + NAMED * named ** 2) * (place.doc.boost ?? 1) ** 0.6 * start, had };
      }).sort((one, other) => other.score - one.score);
      return { asked, found: found.filter(({ score }) => score >= 0.08 * found[0].score).slice(0, 100) };
    }

    answer(question) {
      const { asked, found } = this.find(question), groups = new Map();
      const marked = new Set(asked.flatMap(({ stands }) => [...stands.keys()]));
      const item = ({ place, score, had }) => ({
        location: place.doc.location, title: mark(place.doc.title, marked), text: teaser(place.doc.text, marked), score,
        terms: Object.fromEntries(asked.filter(({ word }) => word).map(({ word }) => [word, had.has(word)])),
      });
      for (const hit of found) {
        const page = hit.place.page.location;
        if (!groups.has(page)) groups.set(page, []);
        groups.get(page).push(item(hit));
      }
      for (const [page, items] of groups)
        if (!items.some(({ location }) => location === page)) items.push({ ...item({ place: this.places.get(page), score: 0, had: new Set() }), terms: {} });
      return { items: [...groups.values()], suggest: this.suggest(question) };
    }

    // The usual word that begins with what is being typed.
    suggest(question) {
      const typed = question.match(/[\p{L}\p{N}]{2,}$/u)?.[0].toLowerCase();
      if (!typed) return [];
      const counts = new Map();
      for (const { doc } of this.all) for (const word of words(plain(doc.title).toLowerCase())) if (word.startsWith(typed)) counts.set(word, (counts.get(word) ?? 0) + 1);
      const most = [...counts].sort((one, other) => other[1] - one[1])[0];
      return most ? [...words(question.toLowerCase()).slice(0, -1), most[0]] : [];
    }
  }

  const isMarked = (word, marked) => words(plain(word)).some((one) => terms(one).some((term) => marked.has(term)) && !STOP.has(one.toLowerCase()));
  const bare = (html) => html.replace(/<[^>]*>/g, " ").split(/\s+/).filter(Boolean); // words with their entities
  const mark = (html, marked) => bare(html).map((word) => isMarked(word, marked) ? `<mark data-md-highlight>${word}</mark>` : word).join(" ");

  function teaser(html, marked) {
    const all = bare(html), first = all.findIndex((word) => isMarked(word, marked)), from = Math.max(0, first - 8), to = from + 30;
    return `${from ? "… " : ""}${mark(all.slice(from, to).join(" "), marked)}${to < all.length ? " …" : ""}`;
  }

  let search = null;
  function handle({ type, data }) {
    if (type === SETUP) { search = new Search(data.docs); return { type: READY }; }
    if (type === QUERY) return { type: RESULT, data: data.trim() ? search.answer(data) : { items: [] } };
    throw new TypeError(`no message has the type ${type}`);
  }

  if (typeof document === "undefined") {
    addEventListener("message", ({ data }) => postMessage(handle(data)));
  } else if (location.protocol === "file:") {
    globalThis.Worker = class extends EventTarget {
      postMessage(data) { setTimeout(() => this.dispatchEvent(new MessageEvent("message", { data: handle(data) }))); }
      terminate() {}
    };
  }
})();
