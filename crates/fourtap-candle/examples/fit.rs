//! Fits a pyramid of feature maps, and where it is sampled, to outputs by gradient descent:
//! `cargo run -p fourtap-candle --example fit`.

use candle_core::{Device, Result, Tensor, Var};
use fourtap_candle::{Levels, ms_deform_attn};

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let device = Device::Cpu;
    let levels = Levels::packed(&[(8, 8), (4, 4)])?;
    let (n, s, m, d, q, l, p) = (1, levels.pixels(), 2, 4, 16, 2, 3);
    let wanted = Tensor::rand(-1f32, 1f32, (n, q, m * d), &device)?;
    let weights = Tensor::full(1.0 / (l * p) as f32, (n, q, m, l, p), &device)?;
    let value = Var::rand(-0.1f32, 0.1f32, (n, s, m, d), &device)?;
    let locations = Var::rand(0f32, 1f32, (n, q, m, l, p, 2), &device)?;

    for step in 0..=200 {
        let out = ms_deform_attn(&value, &levels, &locations, &weights)?;
        let loss = (out - &wanted)?.sqr()?.sum_all()?;
        if step % 50 == 0 {
            println!("step {step}: loss {:.4}", loss.to_scalar::<f32>()?);
        }
        let gradients = loss.backward()?;
        let descend = |variable: &Var, rate: f64| -> Result<()> {
            match gradients.get(variable) {
                Some(gradient) => variable.set(&(variable.as_tensor() - (gradient * rate)?)?),
                None => Ok(()),
            }
        };
        descend(&value, 0.5)?;
        descend(&locations, 1e-3)?;
    }
    Ok(())
}
