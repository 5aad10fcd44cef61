"""A picture of how the loss of each run falls over time, as SVG. Pure: lists in, text out."""

from xml.sax.saxutils import escape

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 420, 56, 170, 34, 46
COLOURS = ("#6b7280", "#2563eb", "#dc2626", "#059669", "#d97706", "#7c3aed")
TICKS = (1, 2, 5)
SMOOTHED = 5  # steps that a point is the mean of: batches are small


def points_of(steps):
    """[(seconds since the run began, loss)] of a run's steps ({"step_ms", "loss"})."""
    seconds, points, last = 0.0, [], []
    for step in steps:
        seconds += step["step_ms"] / 1000
        last = [*last, step["loss"]][-SMOOTHED:]
        points.append((seconds, sum(last) / len(last)))
    return points


def ticks(low, high, wanted=6):
    """Round numbers from low to high, about so many."""
    size = 10.0 ** -6
    while True:
        for each in TICKS:
            step = each * size
            if (high - low) / step <= wanted:
                first = -(-low // step)
                return [round(step * (first + i), 9) for i in range(int((high - step * first) / step) + 1)]
        size *= 10


def picture(runs, title):
    """runs: {name: [(x, y)]}, in the order of the legend."""
    points = [point for run in runs.values() for point in run]
    right = max(x for x, _ in points)
    low, high = min(y for _, y in points), max(y for _, y in points)
    across = (WIDTH - LEFT - RIGHT) / right
    up = (HEIGHT - TOP - BOTTOM) / ((high - low) or 1)

    def at(x, y):
        return f"{LEFT + x * across:.1f},{HEIGHT - BOTTOM - (y - low) * up:.1f}"

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
             f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
             f'<text x="{LEFT}" y="20" font-size="14">{escape(title)}</text>']
    for x in ticks(0, right):
        place = at(x, low).split(",")[0]
        parts.append(f'<path d="M{place},{TOP}V{HEIGHT - BOTTOM}" stroke="#e5e7eb"/>'
                     f'<text x="{place}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{x:g}</text>')
    for y in ticks(low, high):
        place = float(at(0, y).split(",")[1])
        parts.append(f'<path d="M{LEFT},{place}H{WIDTH - RIGHT}" stroke="#e5e7eb"/>'
                     f'<text x="{LEFT - 6}" y="{place + 4:.1f}" text-anchor="end">{y:g}</text>')
    parts.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 10}" text-anchor="middle">seconds of training</text>')
    for number, (name, run) in enumerate(runs.items()):
        colour, y = COLOURS[number % len(COLOURS)], TOP + 14 + 20 * number
        parts.append(f'<path class="run" d="M{" L".join(at(*point) for point in run)}" fill="none" stroke="{colour}" '
                     'stroke-width="2"/>')
        parts.append(f'<path d="M{WIDTH - RIGHT + 14},{y - 4}h18" stroke="{colour}" stroke-width="3"/>'
                     f'<text x="{WIDTH - RIGHT + 38}" y="{y}">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>", ""])
