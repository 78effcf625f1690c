//! ImageLocality: nodes that have the images already.
