//! What is on media: frozen images, and properties of encoding, damage and torn writes.

mod fixture;
mod golden;
mod properties;
mod torn;
