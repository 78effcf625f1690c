//! ElasticQuota: hierarchical quotas.
