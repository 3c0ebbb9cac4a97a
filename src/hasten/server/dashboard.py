"""The plain page at `/`: what runs here, and a small form that streams an answer. No external resources."""

from __future__ import annotations

import html

from hasten.server.state import ServerState

# only this page's own style and script may run, and it may talk to this server only
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)

_STYLE = """
:root { color-scheme: light dark; --line: #8886; }
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 46rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.3rem; margin: 0 0 .5rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1rem; margin: 0 0 1rem; }
dt { opacity: .7; } dd { margin: 0; overflow-wrap: anywhere; }
label { display: block; margin-top: .6rem; }
textarea, input { width: 100%; font: inherit; padding: .5rem; border: 1px solid var(--line); border-radius: .3rem; }
button { font: inherit; padding: .5rem 1.2rem; margin: .6rem .4rem .6rem 0; }
#answer { white-space: pre-wrap; overflow-wrap: anywhere; border-top: 1px solid var(--line); padding-top: .6rem; }
#timing { opacity: .7; font-variant-numeric: tabular-nums; }
"""

_SCRIPT = """
const $ = id => document.getElementById(id);
let running = null;
async function ask(event) {
  event.preventDefault();
  if (running) return;
  running = new AbortController();
  $('stop').disabled = false; $('answer').textContent = ''; $('timing').textContent = '';
  const started = performance.now();
  let first = 0;
  try {
    const headers = {'Content-Type': 'application/json'};
    if ($('key') && $('key').value) headers.Authorization = 'Bearer ' + $('key').value;
    let model = document.body.dataset.model;
    if (!model) {
      const models = await (await fetch('v1/models', {headers})).json();
      if (models.error) throw new Error(models.error.message);
      model = models.data[0].id;
    }
    const response = await fetch('v1/chat/completions', {method: 'POST', headers, signal: running.signal,
      body: JSON.stringify({model, stream: true,
        messages: [{role: 'user', content: $('prompt').value}], hasten: {explain: true}})});
    if (!response.ok) throw new Error((await response.json()).error.message);
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = '';
    for (;;) {
      const {value, done} = await reader.read();
      if (done) break;
      const lines = (rest + value).split('\\n');
      rest = lines.pop();
      for (const line of lines) {
        if (!line.startsWith('data: ') || line === 'data: [DONE]') continue;
        const data = JSON.parse(line.slice(6));
        if (data.error) throw new Error(data.error.message);
        for (const choice of data.choices) {
          const text = choice.delta.content || '';
          if (text && !first) first = performance.now() - started;
          $('answer').textContent += text;
        }
        if (data.hasten && data.hasten.explain) show(data.hasten.explain);
      }
    }
  } catch (error) {
    $('timing').textContent = error.name === 'AbortError' ? 'stopped' : 'Error: ' + error.message;
  }
  running = null; $('stop').disabled = true;
}
function show(ledger) {
  const ms = value => value === null ? '-' : value.toFixed(1) + ' ms';
  $('timing').textContent = 'TTFT ' + ms(ledger.ttft_ms) + ' · TPOT ' + ms(ledger.tpot_ms) + ' · ' +
    ledger.completion_tokens + ' tokens · ' + ledger.parts.map(part => part.name + ' ' + ms(part.ms)).join(' + ') +
    ' = ' + ms(ledger.wall_ms);
}
$('form').addEventListener('submit', ask);
$('stop').addEventListener('click', () => running && running.abort());
"""


def page(state: ServerState) -> str:
    """The page. When keys are needed it names nothing: whoever has one types it in."""
    facts = "" if state.api_keys else _facts(state)
    key = '<label>API key <input id="key" type="password" autocomplete="off"></label>' if state.api_keys else ""
    model = html.escape(state.model_name, quote=True)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>hasten</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<style>{_STYLE}</style></head><body data-model="{"" if state.api_keys else model}">'
        f"<h1>hasten</h1>{facts}"
        f'<form id="form">{key}<label>Question <textarea id="prompt" rows="3" required></textarea></label>'
        '<button>Ask</button><button type="button" id="stop" disabled>Stop</button></form>'
        '<div id="answer" role="status" aria-live="polite"></div><p id="timing"></p>'
        f"<script>{_SCRIPT}</script></body></html>"
    )


def _facts(state: ServerState) -> str:
    rows = {
        "model": ", ".join(state.model_names),
        "context": f"{state.limits.max_tokens_total} tokens",
        "numerics": state.info.numerics_profile,
        **{str(name): str(value) for name, value in state.info.description.items()},
        "API": "/v1/chat/completions, /v1/completions, /v1/models, /metrics, /config",
    }
    cells = "".join(f"<dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd>" for name, value in rows.items())
    return f"<dl>{cells}</dl>"
