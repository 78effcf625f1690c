//! Piecewise linear functions from utilization to score.

use serde::Deserialize;

/// Points of rising utilization (0 to 100) with scores in tenths (0 to 10).
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(transparent)]
pub(crate) struct Shape(Vec<Point>);

/// Point of a [`Shape`]: utilization in percent, and score from 0 to 10.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Point {
    utilization: i64,
    score: i64,
}

impl Shape {
    /// Returns the line from score 10 at utilization 0 to score 0 at 100: empty nodes score best.
    pub(crate) fn falling() -> Self {
        let point = |utilization, score| Point { utilization, score };
        Self(vec![point(0, 10), point(100, 0)])
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Checks that there is a point, that values are in range and that utilization rises.
    ///
    /// # Errors
    /// Returns the reason as text.
    pub(crate) fn validate(&self) -> Result<(), String> {
        if self.0.is_empty() {
            return Err("must have at least one point".to_owned());
        }
        for Point { utilization, score } in &self.0 {
            if !(0..=100).contains(utilization) || !(0..=10).contains(score) {
                return Err(format!(
                    "utilization {utilization} must be within 0 and 100, score {score} within 0 and 10"
                ));
            }
        }
        let rising = |pair: &[Point]| pair[0].utilization < pair[1].utilization;
        if self.0.windows(2).all(rising) {
            Ok(())
        } else {
            Err("utilization must rise from point to point".to_owned())
        }
    }

    /// Returns the score (0 to 100) at `utilization`: linear between the points, constant outside them.
    pub(crate) fn at(&self, utilization: i64) -> i64 {
        let mut before: Option<Point> = None;
        for point in &self.0 {
            if utilization <= point.utilization {
                let Some(last) = before else {
                    return point.score * 10;
                };
                let rise = (point.score - last.score) * 10;
                let run = point.utilization - last.utilization;
                return last.score * 10 + rise * (utilization - last.utilization) / run;
            }
            before = Some(*point);
        }
        before.map_or(0, |last| last.score * 10)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Checks the rows of kube-scheduler's table.
    #[test]
    fn shape_is_linear_between_points_and_constant_outside() {
        let shape = |points: &[(i64, i64)]| -> Shape {
            let point = |(at, score): &(i64, i64)| json!({"utilization": at, "score": score});
            serde_json::from_value(points.iter().map(point).collect()).unwrap()
        };
        #[rustfmt::skip]
        let rows = [
            (shape(&[(10, 1), (90, 9)]), &[(0, 10), (9, 10), (10, 10), (15, 15), (19, 19), (20, 20), (89, 89), (90, 90), (99, 90), (100, 90)][..]),
            (shape(&[(0, 2), (40, 10), (100, 0)]), &[(0, 20), (20, 60), (30, 80), (40, 100), (70, 50), (100, 0)]),
            (shape(&[(0, 2), (40, 2), (100, 2)]), &[(0, 20), (20, 20), (30, 20), (40, 20), (70, 20), (100, 20)]),
        ];
        for (shape, points) in rows {
            for (at, expected) in points {
                assert_eq!(shape.at(*at), *expected, "{shape:?} at {at}");
            }
        }
    }
}
