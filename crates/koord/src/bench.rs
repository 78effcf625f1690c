//! `koord bench`: one component measured by itself.
