// The status page: asks /status.json once a second and draws it anew.
"use strict";

const WINDOW_S = 300, WIDE = 200, EVERY_MS = 1000;
const COLORS = ["--c0", "--c1", "--c2", "--c3", "--c4", "--c5"].map((name) => `var(${name})`);
const byId = (id) => document.getElementById(id);

function tile(title, value, note, bad) {
  return element("div", {class: bad ? "tile bad" : "tile"}, element("span", {class: "quiet"}, title),
                 element("b", {}, value), element("span", {class: "quiet"}, note));
}

function legend(entries) {
  return element("div", {class: "legend"}, ...entries.map(([color, name, value]) => {
    const entry = element("span", {dot: color}, name + " ");
    entry.append(element("b", {}, value));
    return entry;
  }));
}

function titled(title, ...children) {
  return element("div", {}, element("h3", {}, title), ...children);
}

const percent = (share) => `${(100 * share).toFixed(share < 0.0005 || share >= 0.1 ? 0 : 1)} %`;
const last = (list) => list.length ? list[list.length - 1] : [];
const latest = (samples, column) => {
  const found = samples.filter((sample) => sample[column] > 0).slice(-5);
  return found.reduce((sum, sample) => sum + sample[column], 0) / Math.max(found.length, 1);
};
const points = (samples, column, gaps) => samples.map((s) => [s[0], gaps && s[column] === 0 ? null : s[column]]);

function markColor(kind) {
  return kind === "switched" ? "var(--mark)" : kind === "late" ? "var(--exchange)" : "var(--bad)";
}

function times(job, now, width) {
  const from = now - Math.min(WINDOW_S, Math.max(30, now - (job.samples[0] || [now])[0]));
  const marks = job.marks.map(([second, kind, text]) => [second, markColor(kind), text]);
  const step = latest(job.samples, 1), exchange = latest(job.samples, 2);
  return titled("Time of a step", legend([["var(--step)", "step", milliseconds(step)],
                                          ["var(--exchange)", "of it exchanging", milliseconds(exchange)]]),
                chart(width, 190, from, now, [{color: "var(--step)", points: points(job.samples, 1, true)},
                                              {color: "var(--exchange)", points: points(job.samples, 2, true)}],
                      marks, milliseconds));
}

function traffic(job, now, width) {
  const from = now - Math.min(WINDOW_S, Math.max(30, now - (job.samples[0] || [now])[0]));
  const ratio = job.sent > 0 ? `, ${(job.raw / job.sent).toFixed(1)}x fewer in all` : "";
  return titled("Gradients and what is sent for them",
                legend([["var(--raw)", "gradients", rate(last(job.samples)[3] || 0)],
                        ["var(--sent)", "sent", rate(last(job.samples)[4] || 0) + ratio]]),
                chart(width, 190, from, now, [{color: "var(--raw)", points: points(job.samples, 3)},
                                              {color: "var(--sent)", points: points(job.samples, 4)}], [], rate));
}

function codecs(job) {
  const stack = element("div", {class: "stack"});
  const entries = job.codecs.map((codec, i) => {
    const color = COLORS[Math.min(i, COLORS.length - 1)];
    stack.append(element("i", {color, width: `${100 * codec.share}%`, title: codec.codec}));
    return [color, codec.codec, percent(codec.share)];
  });
  return titled("Codecs, by elements", stack, legend(entries));
}

function bar(share, color) {
  return element("div", {class: "bar"}, element("i", {color, width: `${Math.min(100, 100 * share)}%`}));
}

function lateness(job) {
  const most = Math.max(1, ...job.ranks.map((rank) => rank.late_ms));
  const rows = job.ranks.slice(0, 16).flatMap((rank) => {
    const bad = rank.late_ms > 1000, known = rank.local || rank.late_ms > 0;
    const color = bad ? "var(--bad)" : "var(--step)";
    return [element("span", {}, `rank ${rank.rank}`), known ? bar(rank.late_ms / most, color) :
            element("span", {class: "quiet"}, `its own daemon knows (machine ${rank.machine})`),
            element("span", bad ? {class: "bad"} : {}, known ? milliseconds(rank.late_ms) : "")];
  });
  const more = job.ranks.length > 16 ? [element("p", {class: "quiet"}, `${job.ranks.length - 16} more ranks`)] : [];
  return titled("Behind the first rank of their machine", element("div", {class: "bars"}, ...rows), ...more);
}

function job(one, now, wide) {
  const card = element("article", {class: "card"});
  const bad = one.state === "failed";
  card.append(element("div", {class: "title"}, element("h2", {}, `${one.job} / ${one.name}`),
                      element("span", {class: bad ? "state bad" : "state"}, one.state),
                      element("span", {class: "quiet"}, `step ${one.step}, ${one.ranks.length} ranks on ${one.machines} ` +
                              `${one.machines === 1 ? "machine" : "machines"}, user ${one.uid}, plan ${one.plan}`)));
  if (one.error) card.append(element("p", {class: "error"}, one.error));
  const width = Math.max(WIDE, wide);
  card.append(element("div", {class: "charts"}, times(one, now, width), traffic(one, now, width), codecs(one),
                      lateness(one)));
  return card;
}

function links(status, now, wide) {
  if (status.links.length === 0) return [];
  const cells = status.links.flatMap((link) => {
    const out = last(link.samples)[1] || 0, into = last(link.samples)[2] || 0;
    const from = now - Math.min(WINDOW_S, Math.max(30, now - (link.samples[0] || [now])[0]));
    const share = link.line_rate > 0 ? Math.max(out, into) / link.line_rate : 0;
    const up = link.state === "up";
    return [element("div", {}, element("b", up ? {} : {class: "bad"}, `machine ${link.machine}`), element("br"),
                    element("span", {class: "quiet"}, `${link.address}, ${link.job} / ${link.name.split("/")[0]}, ${up ? milliseconds(link.rtt_ms) +
                            " round trip" : link.state}`)),
            chart(Math.max(WIDE, wide), 84, from, now, [{color: "var(--sent)", points: points(link.samples, 1)},
                                                        {color: "var(--step)", points: points(link.samples, 2)}], [], rate),
            element("div", {}, bar(share, share > 0.8 ? "var(--exchange)" : "var(--sent)"),
                    element("span", {class: "quiet"}, link.line_rate > 0 ?
                            `${percent(share)} of ${rate(link.line_rate)}` : "line rate unknown"),
                    legend([["var(--sent)", "out", rate(out)], ["var(--step)", "in", rate(into)]]))];
  });
  const card = element("section", {class: "card"}, element("div", {class: "title"}, element("h2", {}, "Links")),
                       element("div", {class: "links"}, ...cells));
  return [card];
}

function draw(status) {
  const now = status.now;
  byId("machine").textContent = status.machine;
  document.title = `cgxd ${status.machine}`;
  byId("about").textContent = `${status.version}, ${status.lane}, up ${span(status.up)}` +
      (status.recorder ? "" : ", recorder.events is 0: no exchange times, lateness or marks");
  const failed = status.jobs.filter((one) => one.state === "failed").length;
  const late = Math.max(0, ...status.jobs.flatMap((one) => one.ranks.map((rank) => rank.waits_ms)));
  const sum = (column) => status.jobs.reduce((all, one) => all + (last(one.samples)[column] || 0), 0);
  const down = status.links.filter((link) => link.state !== "up").length;
  byId("tiles").replaceChildren(
      tile("Jobs", String(status.jobs.length), failed ? `${failed} failed` : `${status.sessions} trainers here`, failed > 0),
      tile("Gradients", rate(sum(3)), "reduced here"), tile("Sent", rate(sum(4)), "to other machines"),
      tile("Links up", `${status.links.length - down} of ${status.links.length}`, down ? `${down} down` : "to other machines",
           down > 0),
      tile("Latest rank", milliseconds(late), late ? "others wait" : "nobody waits", late > 1000),
      tile("Data thread", `${(100 * status.busy).toFixed(1)} %`, "busy"));
  const columns = window.innerWidth > 760 ? 2 : 1;
  const inner = Math.min(1400, window.innerWidth) - (columns === 2 ? 48 + 38 + 26 : 24 + 26);
  byId("jobs").replaceChildren(...(status.jobs.length ? status.jobs.map((one) => job(one, now, inner / columns)) :
      [element("div", {class: "card empty"}, "No job here at the moment.")]));
  byId("links").replaceChildren(...links(status, now, columns === 2 ? inner * 0.4 : inner));
  document.body.dataset.overflow = Math.max(0, document.documentElement.scrollWidth - window.innerWidth);
}

let drawn = null;
async function refresh() {
  try {
    const answer = await fetch("status.json", {cache: "no-store"});
    if (!answer.ok) throw new Error((await answer.text()).trim());
    drawn = await answer.json();
    draw(drawn);
    byId("trouble").hidden = true;
  } catch (error) {
    byId("trouble").textContent = `No news from the daemon: ${error.message}`;
    byId("trouble").hidden = false;
  }
  setTimeout(refresh, EVERY_MS);
}
window.addEventListener("resize", () => drawn && draw(drawn));
refresh();
