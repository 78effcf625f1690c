//! DefaultPreBind: one patch before the binding.
