//! koord-apiserver
