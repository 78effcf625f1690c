//! The `koord` command.
