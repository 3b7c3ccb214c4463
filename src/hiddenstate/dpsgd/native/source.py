"""The C source of a network: every layer's calls, with its sizes as constants.

All layers go forward in order, then backward in reverse order. A tensor that several layers read
adds up the gradients that they send back. Where a layer has many weights, records are taken in
groups: such layers do a group at once, which reads their weights once, and the others one record
after another. Sums are bit for bit those of records on their own.
"""

import itertools

from hiddenstate.dpsgd.native.calls import GROUP, Call
from hiddenstate.dpsgd.native.network import Network


def c_source(whole: Network) -> str:
    """C source of the driver: every layer's calls, with its sizes as constants."""
    pairs, passes = list(zip(whole.layers, whole.places, strict=True)), passes_of(whole)
    # So each record's memory begins on a cache line, as the whole does (``_aligned``).
    members = [f"_Alignas(64) float sum[{whole.sums}]"]
    prepare = [call for layer, p in pairs for call in layer.prepare(p)]
    room = max(layer.room for layer in whole.layers)
    members += [f"float room[{room}]"] if room else []
    for layer, p in pairs:
        members += [f"float x{p.i + 1}[{p.out.size}]", f"float d{p.i + 1}[{p.out.size}]"]
        members += layer.members(p.i)
    logits, sizes = whole.places[-1].out, (whole.classes, whole.layers[-1].output.channels)
    labels = f"(int)labels[indices[k]], {logits.d()}"
    loss = Call("cross_entropy", sizes, (logits.x(), labels), "squares = 0, losses[k] = ")
    # A norm that overflows makes the sum no number: clipped to 0, its record would vanish.
    factor = "(norms[k] > clip ? clip / norms[k] : 1) + 0 * norms[k]"
    ends = [
        Call("sqrtf", (), ("squares",), "norms[k] = "),
        Call("", (), (factor,), "own = "),
    ]
    guess = Call("argmax", (whole.classes,), (logits.x(),), "guesses[k] = ")
    shared: dict[Call, str] = {}
    group = GROUP if any(layer.heavy for layer in whole.layers) else 1
    forward, backward, collect = passes
    there, back = (
        "\n    ".join(
            _for_records(list(some), together, group, whole.buffers[0].size, shared)
            for together, some in itertools.groupby(calls, lambda call: group > 1 and call.together)
        )
        for calls in ([*forward, guess, loss], [*backward, *ends, *collect])
    )
    functions = "\n".join(call.definition(name) for call, name in shared.items())
    members.append("float squares, scale")
    fields = "\n".join(f"  {m};" for m in members)
    once = "".join(f"  {call}\n" for call in prepare)
    return f"""#include "clipped_sum.h"
typedef struct {{
{fields}
}} Scratch;
#define APART ((int)(sizeof(Scratch) / sizeof(float)))
{functions}
size_t scratch_bytes(void) {{ return {group} * sizeof(Scratch); }}
int lanes(void) {{ return LANES; }}
/* Returns 0, or 1 if an index is not of a record: then nothing was summed. Without a place for the
 * sum the records go forward alone, and have no norms. */
int clipped_sum(const float *w, const float *x, const int64_t *labels, int64_t records,
                const int64_t *indices, int64_t n, float clip, float *sum, float *norms,
                float *losses, float *guesses, Scratch *all) {{
  for (int64_t i = 0; i < n; i++)
    if (indices[i] < 0 || indices[i] >= records) return 1;
{once}  for (int64_t i = 0; i < n; i += {group}) {{
    const int here = (int)MIN({group}, n - i);
    {there}
    if (!sum) continue;
    {back}
  }}
  return 0;
}}
"""


def passes_of(whole: Network) -> tuple[list[Call], list[Call], list[Call]]:
    """Calls for a record: forward, backward, and adding its gradients to the sum."""
    pairs = list(zip(whole.layers, whole.places, strict=True))
    backward, reached = [], {0}
    for layer, p in reversed(pairs):
        backward += layer.backward(p)
        for which, v in enumerate(layer.sources):
            if v:
                # Backwards, a tensor's last reader writes its gradient, and earlier ones add to it.
                backward += layer.pass_on(p, which, add=v in reached)
                reached.add(v)
    forward = [call for layer, p in pairs for call in layer.forward(p)]
    return forward, backward, [call for layer, p in pairs for call in layer.collect(p)]


def _for_records(
    calls: list[Call], together: bool, group: int, record: int, shared: dict[Call, str]
) -> str:
    """C statements for the records of a group: one after the other, or all at once."""

    def listed(records: int) -> str:
        return "\n      ".join(str(call.of(records).shared(shared)) for call in calls)

    alone = f"""for (int r = 0; r < here; r++) {{
      Scratch *s = all + r;
      const int64_t k = i + r;
      const float *x0 = x + indices[k] * {record};
      float squares = s->squares, own = s->scale;
      const float *scale = &own;
      {listed(1)}
      s->squares = squares, s->scale = own;
    }}"""
    if not together:
        return alone
    # A smaller group at the end goes record by record, with the same sums bit for bit.
    return f"""if (here == {group}) {{
      Scratch *s = all;
      const float *scale = &s->scale;
      {listed(group)}
    }} else {alone}"""
