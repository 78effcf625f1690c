//! Macro that builds a service from a table of its methods.

/// Defines from a table of methods: a trait with a function for each method, which answers `UNIMPLEMENTED` by
/// default, a server for any implementation of the trait, and a client.
macro_rules! service {
    (
        $(#[$doc:meta])*
        $name:literal: $trait:ident, $server:ident, $client:ident {
            $($(#[$method_doc:meta])* $method:literal $function:ident($request:ty) -> $response:ty;)*
        }
    ) => {
        $(#[$doc])*
        pub trait $trait: Send + Sync + 'static {
            $($(#[$method_doc])*
            fn $function(
                &self,
                request: $request,
                context: $crate::ttrpc::Context,
            ) -> impl Future<Output = Result<$response, $crate::ttrpc::Status>> + Send {
                let _ = (request, context);
                async {
                    let message = concat!("no method ", $name, "/", $method);
                    Err($crate::ttrpc::Status::new($crate::ttrpc::Code::Unimplemented, message))
                }
            })*
        }

        #[doc = concat!("Serves [`", stringify!($trait), "`] over ttrpc.")]
        #[derive(Debug)]
        pub struct $server<T>(pub std::sync::Arc<T>);

        impl<T: $trait> $crate::ttrpc::Service for $server<T> {
            fn name(&self) -> &'static str {
                $name
            }

            fn call(&self, call: $crate::ttrpc::Incoming) -> $crate::ttrpc::Answer {
                use $crate::ttrpc::{Code, Status};
                let service = std::sync::Arc::clone(&self.0);
                Box::pin(async move {
                    match call.method.as_str() {
                        $($method => {
                            let request = <$request as prost::Message>::decode(call.payload);
                            let request = request.map_err(|error| {
                                let message = format!(concat!($method, ": undecodable request: {}"), error);
                                Status::new(Code::InvalidArgument, message)
                            })?;
                            let response = service.$function(request, call.context).await?;
                            Ok(prost::Message::encode_to_vec(&response))
                        })*
                        other => {
                            let message = format!(concat!("no method ", $name, "/{}"), other);
                            Err(Status::new(Code::Unimplemented, message))
                        }
                    }
                })
            }
        }

        #[doc = concat!("Calls [`", stringify!($trait), "`] over ttrpc.")]
        #[derive(Debug, Clone)]
        pub struct $client(pub $crate::ttrpc::Client);

        impl $client {
            $($(#[$method_doc])*
            ///
            /// # Errors
            ///
            /// See [`Error`](crate::ttrpc::Error).
            pub async fn $function(
                &self,
                request: &$request,
                options: &$crate::ttrpc::Options,
            ) -> Result<$response, $crate::ttrpc::Error> {
                self.0.call($name, $method, request, options).await
            })*
        }
    };
}
pub(crate) use service;
