//! Properties of the layout, each against a reference that is too simple to be wrong in the same
//! way.

mod md;
mod placement;
mod reference;
mod survival;
