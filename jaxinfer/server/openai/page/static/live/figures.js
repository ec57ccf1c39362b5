// The figures of the live view: what each shows, from this scrape and the one before.

const RATE = { digits: 0, unit: "tok/s" };

/** Each has a label, a unit, and a function of (scrape, the one before) to a number or null. */
export const FIGURES = [
  { id: "running", label: "Running", note: "requests with a slot", value: gauge("num_requests_running") },
  { id: "waiting", label: "Waiting", note: "requests without one", value: gauge("num_requests_waiting") },
  { id: "cache", label: "KV cache in use", note: "share of its blocks", unit: "%", digits: 1, value: cacheUse },
  { id: "generated", label: "Generated", note: "sampled, of all requests", ...RATE, value: rate("generation_tokens_total") },
  { id: "prompts", label: "Prompts", note: "read, cached ones included", ...RATE, value: rate("prompt_tokens_total") },
  { id: "first", label: "First token", note: "mean of the last ones", unit: "ms", digits: 0, value: firstToken },
  { id: "hits", label: "Prefix cache hits", note: "of prompt tokens, since the start", unit: "%", digits: 0, value: hits },
  { id: "finished", label: "Finished", note: "completions since the start", value: gauge("request_success_total") },
];

function gauge(name) {
  return (now) => now.get(name);
}

function rate(name) {
  return (now, before) => now.rate(name, before);
}

function cacheUse(now) {
  const share = now.get("kv_cache_usage_perc");
  return share === null ? null : share * 100;
}

function firstToken(now, before) {
  const name = "time_to_first_token_seconds";
  const count = now.gained(`${name}_count`, before);
  return count ? (1000 * now.gained(`${name}_sum`, before)) / count : null;
}

function hits(now) {
  const asked = now.get("prefix_cache_queries_total");
  return asked ? (100 * now.get("prefix_cache_hits_total")) / asked : null;
}
