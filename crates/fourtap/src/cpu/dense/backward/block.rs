//! A block of rows, whose weights are computed again a step of keys at a time.

use std::f64::consts::LOG2_E;
use std::ops::Range;

use super::kernels::{Dots, PackRows, Scale, Weigh};
use super::key_tile::KeyTile;
use super::plan::Plan;
use super::tile_products::{ADDED_TOGETHER, Sides, TensorRows, TileProducts};
use crate::cpu::Cpu;
use crate::cpu::dense::lanes::{KEYS, Lane, QUERIES};
use crate::cpu::dense::mask::KeptBiases;
use crate::cpu::dense::product::{Matrix, MatrixMut, Product, SCALED, whole_vectors};
use crate::cpu::dense::rows::{HeadRows, Rows, Spread};
use crate::cpu::dense::seen::SeenByRows;
use crate::cpu::raw::Raw;
use crate::cpu::simd::{VectorReal, Vectorized};
use crate::dtype::Element;

/// A block of rows.
pub(super) struct Block<'a, R> {
    pub seen: SeenByRows<'a>,
    /// Queries and gradients of the output, one per channel, rows in the lanes; there once vectors have to multiply them.
    queries: &'a mut [Lane<R>],
    grads: &'a mut [Lane<R>],
    are_spread: bool,
    /// Both as tiles multiply them, if they do.
    pub in_tiles: Option<RowsInTiles<'a, R>>,
    /// The same with channels in the lanes, one per row.
    pub query_rows: Matrix<'a, R>,
    pub grad_rows: Matrix<'a, R>,
    /// Sums of the gradient of the queries before they are scaled, one per channel.
    pub sums: &'a mut [Lane<R>],
    /// The LSE as an exponent of 2.
    lse: Lane<R>,
    /// The sum of the products of output and its gradient.
    delta: Lane<R>,
    /// Lanes of rows whose LSE is minus infinity.
    without_keys: Vec<usize>,
    /// Whether queries and gradients are neither infinite nor NaN.
    pub is_finite: bool,
}

/// Queries and gradients of the output as tiles multiply them, and as they sum them.
#[derive(Clone, Copy)]
pub(super) struct RowsInTiles<'a, R> {
    queries: &'a [Lane<R>],
    grads: &'a [Lane<R>],
    pub query_pairs: &'a [Lane<R>],
    pub grad_pairs: &'a [Lane<R>],
}

/// Room for one step of one block.
pub(super) struct Step<'a, R> {
    /// One per key.
    pub weights: &'a mut [Lane<R>],
    /// Gradients of the logits, one per key.
    pub logit_grads: &'a mut [Lane<R>],
    pub biases: KeptBiases<'a, R>,
}

impl<'a, R: VectorReal> Step<'a, R> {
    /// Size of its memory.
    pub fn room(has_biases: bool) -> usize {
        let biases = match has_biases {
            true => KeptBiases::<R>::room(0),
            false => 0,
        };
        2 * KEYS + biases
    }

    /// In memory of that size.
    pub fn new(memory: &'a mut [Lane<R>]) -> Self {
        let (weights, rest) = memory.split_at_mut(KEYS);
        let (logit_grads, biases) = rest.split_at_mut(KEYS);
        Step {
            weights,
            logit_grads,
            biases: KeptBiases::new(biases, 0),
        }
    }
}

/// What a block computed for a tile of keys.
pub(super) struct Weighed {
    /// The keys that some row sees, counted from the first of the tile; so are weights and gradients.
    pub keys: Range<usize>,
    /// For each of them, the lanes that see it, if that was asked for.
    pub seen: Option<[u64; KEYS]>,
}

impl<'a, R: VectorReal> Block<'a, R> {
    /// Size of its memory.
    pub fn room<E: Element<Accumulator = R>>(plan: &Plan<'_, E>) -> usize {
        let (channels, values) = (plan.sizes.channels, plan.sizes.value_channels);
        let [queries, grads] = plan.room_for_tiles();
        let rows = whole_vectors(channels) + whole_vectors(values);
        let sums = channels.next_multiple_of(ADDED_TOGETHER);
        channels + values + sums + rows + 2 * (queries + grads)
    }

    /// `rows`, at least one and at most [`QUERIES`], before the first step, in memory of that size.
    ///
    /// # Safety
    /// The rows lie in the problem.
    pub unsafe fn new<E: Vectorized<Accumulator = R>>(
        cpu: &Cpu,
        plan: &Plan<'a, E>,
        of: HeadRows,
        rows: Range<usize>,
        memory: &'a mut [Lane<R>],
    ) -> Self {
        let (channels, values) = (plan.sizes.channels, plan.sizes.value_channels);
        let (queries, rest) = memory.split_at_mut(channels);
        let (grads, rest) = rest.split_at_mut(values);
        let (sums, rest) = rest.split_at_mut(channels.next_multiple_of(ADDED_TOGETHER));
        let (query_rows, rest) = rest.split_at_mut(whole_vectors(channels));
        let (grad_rows, rest) = rest.split_at_mut(whole_vectors(values));
        let [of_queries, of_grads] = plan.room_for_tiles();
        let (query_tiles, rest) = rest.split_at_mut(of_queries);
        let (grad_tiles, rest) = rest.split_at_mut(of_grads);
        let (query_pairs, grad_pairs) = rest.split_at_mut(of_queries);
        let pack_tiles = |tiles: &TileProducts<E>| {
            let queries = RowsToPack::new(&plan.query, of, &rows, channels);
            let grads = RowsToPack::new(&plan.grad_out, of, &rows, values);
            let (queries, grads) = (queries.rows(), grads.rows());
            // SAFETY: the rows lie in the problem, and where there is such a plan there are tiles.
            unsafe {
                (tiles.pack_right)(queries, query_tiles)
                    && (tiles.pack_right)(grads, grad_tiles)
                    && (tiles.pack_pairs)(queries, query_pairs)
                    && (tiles.pack_pairs)(grads, grad_pairs)
            }
        };
        let are_packed = plan.tiles.as_ref().is_some_and(pack_tiles);
        let pack = |tensor, channels, to: &'a mut [Lane<R>]| {
            let stride = whole_vectors(channels);
            cpu.run(PackRows {
                tensor,
                of,
                rows: rows.clone(),
                channels,
                to: MatrixMut {
                    numbers: Lane::numbers_mut(to),
                    stride,
                },
            });
            Matrix {
                numbers: &Lane::numbers(to)[..rows.len() * stride],
                stride,
            }
        };
        let query_rows = pack(&plan.query, channels, query_rows);
        let grad_rows = pack(&plan.grad_out, values, grad_rows);
        sums.fill(Lane([R::ZERO; QUERIES]));
        let mut delta = Lane([R::ZERO; QUERIES]);
        cpu.run(Dots {
            tensor: &plan.out,
            of,
            rows: rows.clone(),
            channels: values,
            with: grad_rows,
            to: &mut delta,
        });
        let mut lse = Lane([R::ZERO; QUERIES]);
        let mut without_keys = Vec::new();
        for (lane, row) in rows.clone().enumerate() {
            // SAFETY: the row lies in the problem.
            let natural = unsafe { *plan.lse.at(of.place(row)) };
            if natural == R::NEG_INFINITY {
                without_keys.push(lane);
            } else {
                lse.0[lane] = natural * R::from_f64(LOG2_E);
            }
        }
        // SAFETY: the rows have been written.
        let is_finite = unsafe {
            Rows::of(query_rows).are_finite(rows.len(), channels)
                && Rows::of(grad_rows).are_finite(rows.len(), values)
        };
        Block {
            seen: SeenByRows::new(plan.problem, plan.mask.as_ref(), of, rows),
            queries,
            grads,
            are_spread: false,
            in_tiles: match are_packed {
                true => Some(RowsInTiles {
                    queries: query_tiles,
                    grads: grad_tiles,
                    query_pairs,
                    grad_pairs,
                }),
                false => None,
            },
            query_rows,
            grad_rows,
            sums,
            lse,
            delta,
            without_keys,
            is_finite,
        }
    }

    /// The weights of a tile of keys and, if `with_grads`, the gradients of its logits, 0 where a row does not see a key. `None` if no
    /// row sees any. With `list_seen` it also says who sees what.
    ///
    /// # Safety
    /// The keys lie in the problem.
    pub unsafe fn weigh<E: Vectorized<Accumulator = R>>(
        &mut self,
        cpu: &Cpu,
        plan: &Plan<'_, E>,
        tile: &KeyTile<'_, R>,
        step: &mut Step<'_, R>,
        [with_grads, list_seen]: [bool; 2],
    ) -> Option<Weighed> {
        // SAFETY: as the caller promises.
        let seen = unsafe { self.seen.in_step(&tile.keys) }?;
        let keys = seen.keys.start - tile.keys.start..seen.keys.end - tile.keys.start;
        // SAFETY: the rows of the tile are readable.
        unsafe { self.multiply(cpu, plan, tile, &keys, step, with_grads) };
        let lanes = self.seen.rows.len();
        let weights = &mut step.weights[keys.clone()];
        self.seen.apply(cpu, &seen, weights, &mut step.biases, None);
        for &lane in &self.without_keys {
            for Lane(weights) in weights.iter_mut() {
                weights[lane] = R::NEG_INFINITY;
            }
        }
        let listed = list_seen.then(|| list(weights, lanes));
        cpu.run(Weigh {
            logits: weights,
            grads: match with_grads {
                true => &mut step.logit_grads[keys.clone()],
                false => &mut [],
            },
            lse: &self.lse,
            delta: &self.delta,
            lanes,
        });
        Some(Weighed { keys, seen: listed })
    }

    /// The scaled products of keys and queries and, if `with_grads`, those of values and gradients.
    ///
    /// # Safety
    /// The rows of the tile are readable.
    unsafe fn multiply<E: Vectorized<Accumulator = R>>(
        &mut self,
        cpu: &Cpu,
        plan: &Plan<'_, E>,
        tile: &KeyTile<'_, R>,
        keys: &Range<usize>,
        step: &mut Step<'_, R>,
        with_grads: bool,
    ) {
        let Step {
            weights,
            logit_grads,
            ..
        } = step;
        let channels = [plan.sizes.channels, plan.sizes.value_channels];
        let out = [&mut **weights, &mut **logit_grads];
        let products = if with_grads { 2 } else { 1 };
        if let (Some(tiles), Some(left), Some(right)) = (&plan.tiles, tile.in_tiles, self.in_tiles)
        {
            let left = [left.keys, left.values];
            let right = [right.queries, right.grads];
            let sides = left.into_iter().zip(right).zip(channels);
            for (((left, right), channels), out) in sides.zip(out).take(products) {
                let sides = Sides {
                    left,
                    right,
                    channels,
                };
                // SAFETY: both were packed with these channels.
                unsafe { (tiles.multiply)(sides, out) };
            }
            return cpu.run(Scale {
                numbers: &mut weights[keys.clone()],
                factor: plan.factor,
            });
        }
        self.spread(cpu, plan);
        let left = [tile.key_rows, tile.value_rows].map(|rows| rows.after(keys.start));
        let right = [&*self.queries, &*self.grads];
        let factors = [plan.factor, R::ONE];
        let sides = left.into_iter().zip(right).zip(factors);
        for (((left, right), factor), out) in sides.zip(out).take(products) {
            cpu.run(Product::<_, SCALED> {
                left: left.first,
                row: left.stride,
                step: 1,
                right: right.into(),
                out: (&mut out[keys.clone()]).into(),
                factors: &[factor; QUERIES],
                columns: self.seen.rows.len(),
            });
        }
    }

    /// Transposes queries and gradients into lanes, if they are not there yet.
    fn spread<E: Vectorized<Accumulator = R>>(&mut self, cpu: &Cpu, plan: &Plan<'_, E>) {
        if std::mem::replace(&mut self.are_spread, true) {
            return;
        }
        let to = [&mut *self.queries, &mut *self.grads];
        for (tensor, to) in [&plan.query, &plan.grad_out].into_iter().zip(to) {
            cpu.run(Spread {
                tensor,
                of: self.seen.of,
                rows: self.seen.rows.clone(),
                to,
            });
        }
    }
}

/// Rows to pack for tiles, the same distance apart.
struct RowsToPack<E> {
    rows: TensorRows<E>,
    /// A copy of those of several heads, which are not.
    copy: Option<Vec<E>>,
}

impl<E: Element> RowsToPack<E> {
    fn new(tensor: &Raw<E, 4>, of: HeadRows, rows: &Range<usize>, channels: usize) -> Self {
        let [.., row, channel] = tensor.strides;
        let copy = (of.heads > 1).then(|| {
            let firsts = rows.clone().map(|row| tensor.at(of.place(row)));
            // SAFETY: the channels lie in the row, which lies in the problem.
            let at = |first: *mut E, index| unsafe { *first.offset(index as isize * channel) };
            firsts
                .flat_map(|first| (0..channels).map(move |index| at(first, index)))
                .collect()
        });
        let rows = TensorRows {
            first: tensor.at(of.place(rows.start)).cast_const(),
            strides: [row, channel],
            count: rows.len(),
            channels,
        };
        RowsToPack { rows, copy }
    }

    /// They live as long as this.
    fn rows(&self) -> TensorRows<E> {
        match &self.copy {
            Some(copy) => TensorRows {
                first: copy.as_ptr(),
                strides: [self.rows.channels as isize, 1],
                ..self.rows
            },
            None => self.rows,
        }
    }
}

/// For each key, a bit for each lane whose logit is not minus infinity.
fn list<R: VectorReal>(logits: &[Lane<R>], lanes: usize) -> [u64; KEYS] {
    let mut seen = [0; KEYS];
    for (seen, Lane(logits)) in seen.iter_mut().zip(logits) {
        for (lane, &logit) in logits[..lanes].iter().enumerate() {
            *seen |= u64::from(logit != R::NEG_INFINITY) << lane;
        }
    }
    seen
}
