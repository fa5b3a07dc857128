//! Labels where they cover nothing.

use super::LINE;

/// How far a mark reaches, with some air.
const MARK: f64 = 8.0;

/// A rectangle; y grows downwards.
#[derive(Clone, Copy, Debug)]
pub(super) struct Box2 {
    pub left: f64,
    pub top: f64,
    pub right: f64,
    pub bottom: f64,
}

impl Box2 {
    /// Area that both have.
    fn shared(&self, other: &Box2) -> f64 {
        let width = self.right.min(other.right) - self.left.max(other.left);
        let height = self.bottom.min(other.bottom) - self.top.max(other.top);
        width.max(0.0) * height.max(0.0)
    }

    fn area(&self) -> f64 {
        (self.right - self.left) * (self.bottom - self.top)
    }
}

/// Where a label goes.
pub(super) struct Place {
    pub text: Box2,
    /// A line from the mark's edge that leads to it, if it is not beside.
    pub leader: Option<((f64, f64), (f64, f64))>,
}

/// Labels of marks within a frame.
pub(super) struct Labels {
    frame: Box2,
    taken: Vec<Box2>,
}

impl Labels {
    /// With marks at `marks`, which no label may cover.
    pub fn new(frame: Box2, marks: impl Iterator<Item = (f64, f64)>) -> Labels {
        let taken = marks.map(|(x, y)| Box2 {
            left: x - MARK,
            top: y - MARK,
            right: x + MARK,
            bottom: y + MARK,
        });
        Labels {
            frame,
            taken: taken.collect(),
        }
    }

    /// The nearest free place for a label of this width, or else the one that covers
    /// least.
    pub fn place(&mut self, (x, y): (f64, f64), width: f64) -> Place {
        const RINGS: [f64; 7] = [MARK + 2.0, 22.0, 36.0, 52.0, 70.0, 92.0, 120.0];
        let candidates = RINGS.into_iter().flat_map(|r| {
            // Beside, then slanted, then above and below.
            let d = r * 0.8;
            let beside = [
                (r, 0.0),
                (-r, 0.0),
                (d, -d),
                (d, d),
                (-d, -d),
                (-d, d),
                (0.0, -r),
                (0.0, r),
            ];
            beside.map(|(dx, dy)| (r, x + dx, y + dy))
        });
        let mut best: Option<(f64, Place)> = None;
        for (r, cx, cy) in candidates {
            let left = if cx > x {
                cx
            } else if cx < x {
                cx - width
            } else {
                x - width / 2.0
            };
            let half = LINE / 2.0;
            let cy = if cx == x {
                cy + half * (cy - y).signum()
            } else {
                cy
            };
            let text = Box2 {
                left,
                top: cy - half,
                right: left + width,
                bottom: cy + half,
            };
            let outside = text.area() - text.shared(&self.frame);
            let covered: f64 = self.taken.iter().map(|t| t.shared(&text)).sum();
            let cost = outside + covered;
            if best.as_ref().is_none_or(|(least, _)| cost < *least - 1e-6) {
                let end = (
                    x.clamp(text.left, text.right),
                    y.clamp(text.top, text.bottom),
                );
                let length = (end.0 - x).hypot(end.1 - y).max(MARK);
                let edge = |from: f64, to: f64| from + (to - from) * (MARK - 2.0) / length;
                let start = (edge(x, end.0), edge(y, end.1));
                let leader = (r > RINGS[0]).then_some((start, end));
                best = Some((cost, Place { text, leader }));
            }
            if cost < 1e-6 {
                break;
            }
        }
        let (_, place) = best.expect("there are candidates");
        self.taken.push(place.text);
        place
    }
}

/// Heights moved as little as this simple way can, so that each is `gap` from the next.
pub(super) fn spread(heights: &[f64], gap: f64, top: f64, bottom: f64) -> Vec<f64> {
    let mut order: Vec<usize> = (0..heights.len()).collect();
    order.sort_by(|&a, &b| heights[a].total_cmp(&heights[b]));
    let mut placed = heights.to_vec();
    let mut least = top;
    for &i in &order {
        placed[i] = placed[i].max(least);
        least = placed[i] + gap;
    }
    // Back up what went below the frame.
    let mut most = bottom;
    for &i in order.iter().rev() {
        placed[i] = placed[i].min(most);
        most = placed[i] - gap;
    }
    placed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crowd_of_labels_covers_nothing() {
        let frame = Box2 {
            left: 60.0,
            top: 40.0,
            right: 748.0,
            bottom: 450.0,
        };
        let marks: Vec<(f64, f64)> = (0..14)
            .map(|i| (200.0 + 35.0 * (i % 3) as f64, 200.0 + 6.0 * i as f64))
            .collect();
        let mut labels = Labels::new(frame, marks.iter().copied());
        for mark in &marks {
            labels.place(*mark, 100.0);
        }
        let (_, texts) = labels.taken.split_at(marks.len());
        for (i, text) in texts.iter().enumerate() {
            assert!(text.shared(&frame) > text.area() - 1e-6, "{text:?}");
            let others = labels
                .taken
                .iter()
                .enumerate()
                .filter(|(j, _)| *j != marks.len() + i);
            for (_, other) in others {
                assert!(text.shared(other) < 1e-6, "{text:?} {other:?}");
            }
        }
    }

    #[test]
    fn heights_are_spread() {
        let spread = spread(&[100.0, 101.0, 30.0, 399.0, 400.0], 15.0, 30.0, 400.0);
        assert_eq!(spread, [100.0, 115.0, 30.0, 385.0, 400.0]);
    }
}
