//! The oracle of dense attention against numbers worked out by hand.

use fourtap::View;
use fourtap::dense::oracle::{self, Attention};
use fourtap::dense::{Alignment, Inputs, Mask, Options};

/// One sequence, one head, one channel.
fn attend(query: &[f64], key: &[f64], value: &[f64], options: Options) -> Attention<f64> {
    let inputs = Inputs {
        query: View::new(query, &[1, 1, query.len(), 1]),
        key: View::new(key, &[1, 1, key.len(), 1]),
        value: View::new(value, &[1, 1, value.len(), 1]),
        attn_mask: None,
    };
    oracle::forward(&inputs, options).unwrap()
}

fn masked(mask: Mask) -> Options {
    Options {
        mask,
        ..Options::default()
    }
}

fn totals(sums: &[fourtap::msda::oracle::Sum<f64>]) -> Vec<f64> {
    sums.iter().map(|sum| sum.total).collect()
}

fn assert_near(found: &[f64], expected: &[f64]) {
    let near = |(a, b): (&f64, &f64)| a == b || (a - b).abs() < 1e-14;
    assert!(
        found.len() == expected.len() && found.iter().zip(expected).all(near),
        "{found:?} is not {expected:?}"
    );
}

#[test]
fn weights_of_two_keys_are_the_logistic_function_of_their_difference() {
    // Logits 0 and ln 3: weights 1/4 and 3/4, the sum of exponentials 4.
    let result = attend(&[1.0], &[0.0, 3f64.ln()], &[8.0, 16.0], Options::default());
    assert_near(&totals(&result.out), &[14.0]);
    assert_near(&totals(&result.lse), &[4f64.ln()]);
}

#[test]
fn the_scale_is_one_over_the_root_of_the_channels_unless_given() {
    // Four channels: 2 * ln 3 over 2.
    let (query, key) = ([1.0, 1.0, 0.0, 0.0], [3f64.ln(), 3f64.ln(), 5.0, 7.0]);
    let keys: Vec<f64> = [0.0; 4].into_iter().chain(key).collect();
    let inputs = Inputs {
        query: View::new(&query, &[1, 1, 1, 4]),
        key: View::new(&keys, &[1, 1, 2, 4]),
        value: View::new(&[8.0, 16.0], &[1, 1, 2, 1]),
        attn_mask: None,
    };
    let by_default = oracle::forward::<f64>(&inputs, Options::default()).unwrap();
    assert_near(&totals(&by_default.out), &[14.0]);
    let halved = Options {
        scale: Some(0.0),
        ..Options::default()
    };
    let alike = oracle::forward::<f64>(&inputs, halved).unwrap();
    assert_near(&totals(&alike.out), &[12.0]);
    assert_near(&totals(&alike.lse), &[2f64.ln()]);
}

#[test]
fn causal_masks_begin_where_they_are_aligned() {
    let (query, key, value) = ([0.0; 2], [0.0; 4], [1.0, 2.0, 4.0, 8.0]);
    let top = attend(
        &query,
        &key,
        &value,
        masked(Mask::causal(Alignment::TopLeft)),
    );
    assert_near(&totals(&top.out), &[1.0, 1.5]);
    let bottom = attend(
        &query,
        &key,
        &value,
        masked(Mask::causal(Alignment::BottomRight)),
    );
    assert_near(&totals(&bottom.out), &[7.0 / 3.0, 15.0 / 4.0]);
    assert_near(&totals(&bottom.lse), &[3f64.ln(), 4f64.ln()]);
}

#[test]
fn windows_reach_as_far_as_they_say() {
    let (query, key, value) = ([0.0; 4], [0.0; 4], [1.0, 2.0, 4.0, 8.0]);
    let window = Mask::window(Alignment::BottomRight, Some(1), Some(1));
    let both = attend(&query, &key, &value, masked(window));
    assert_near(&totals(&both.out), &[1.5, 7.0 / 3.0, 14.0 / 3.0, 6.0]);
    let left = Mask::causal(Alignment::TopLeft).with_window(Some(1), None);
    let left = attend(&query, &key, &value, masked(left));
    assert_near(&totals(&left.out), &[1.0, 1.5, 3.0, 6.0]);
}

#[test]
fn a_query_that_sees_nothing_gets_zero_and_minus_infinity() {
    // Three queries, one key at the last: the first two stand before it.
    let mask = Mask::causal(Alignment::BottomRight);
    let result = attend(&[1.0; 3], &[1.0], &[5.0], masked(mask));
    assert_near(&totals(&result.out), &[0.0, 0.0, 5.0]);
    assert_near(
        &totals(&result.lse),
        &[f64::NEG_INFINITY, f64::NEG_INFINITY, 1.0],
    );
    let no_keys = attend(&[1.0; 2], &[], &[], Options::default());
    assert_near(&totals(&no_keys.out), &[0.0; 2]);
    assert_near(&totals(&no_keys.lse), &[f64::NEG_INFINITY; 2]);
}

#[test]
fn heads_of_a_group_follow_each_other() {
    // Four heads of queries, two of keys: the first two use the first.
    let inputs = Inputs {
        query: View::new(&[0.0f64; 4], &[1, 4, 1, 1]),
        key: View::new(&[0.0f64; 2], &[1, 2, 1, 1]),
        value: View::new(&[3.0f64, 7.0], &[1, 2, 1, 1]),
        attn_mask: None,
    };
    let result = oracle::forward::<f64>(&inputs, Options::default()).unwrap();
    assert_near(&totals(&result.out), &[3.0, 3.0, 7.0, 7.0]);
}
