//! SVG as pixels.

use std::sync::Arc;

use resvg::tiny_skia::{Pixmap, Transform};
use resvg::usvg::{Options, Tree, fontdb};

use crate::error::{Error, Result};

/// Pixels a unit: enough for screens of twice the usual density.
const SCALE: f32 = 2.0;

/// A chart that stands alone as PNG. `name` is said if it cannot be.
pub fn png(name: &str, svg: &str) -> Result<Vec<u8>> {
    let failed = |reason: String| Error::Picture {
        name: name.to_string(),
        reason,
    };
    let mut fonts = fontdb::Database::new();
    for font in [notosans::REGULAR_TTF, notosans::BOLD_TTF] {
        fonts.load_font_data(font.to_vec());
    }
    fonts.set_sans_serif_family("Noto Sans");
    let options = Options {
        font_family: "Noto Sans".to_string(),
        fontdb: Arc::new(fonts),
        ..Options::default()
    };
    let tree = Tree::from_str(svg, &options).map_err(|error| failed(error.to_string()))?;
    let size = tree.size();
    let [width, height] =
        [size.width(), size.height()].map(|length| (length * SCALE).ceil() as u32);
    let mut pixels =
        Pixmap::new(width, height).ok_or_else(|| failed(format!("{width} x {height} pixels")))?;
    let transform = Transform::from_scale(SCALE, SCALE);
    resvg::render(&tree, transform, &mut pixels.as_mut());
    pixels
        .encode_png()
        .map_err(|error| failed(error.to_string()))
}
