package product

// Redis are the products that speak Redis' protocol. Their signs are fields of INFO.
var Redis = &Protocol{
	Products: []Product{
		{
			Name:   "Redis",
			Signs:  []Sign{{"redis_version", ""}},
			Source: "https://redis.io/docs/latest/commands/info/",
		},
		{
			Name:   "Valkey",
			Signs:  []Sign{{"valkey_version", ""}},
			Source: "https://valkey.io/commands/info/",
		},
		{
			Name:   "Redis Enterprise",
			Signs:  []Sign{{"rlec_version", ""}},
			Store:  Untested,
			Why:    "a proxy is in front of its servers",
			Cure:   "turn on replication and persistence of the database",
			Source: "https://redis.io/docs/latest/operate/rs/references/compatibility/commands/",
		},
		{
			Name:   "a Redis Enterprise Active-Active database",
			Signs:  []Sign{{"crdt_config_version", ""}},
			Store:  Refused,
			Why:    "two regions grant the same key, and the later write wins",
			Cure:   "use a database that is not Active-Active",
			Source: "https://redis.io/docs/latest/operate/rs/databases/active-active/develop/develop-for-aa/",
		},
		{
			Name:   "KeyDB",
			Signs:  []Sign{{"mvcc_depth", ""}},
			Store:  Untested,
			Why:    "it is a fork of Redis 6 with several threads",
			Cure:   "use Valkey, or keep active-replica and multi-master off",
			Source: "https://docs.keydb.dev/docs/faq",
		},
		{
			Name:   "a KeyDB active replica",
			Signs:  []Sign{{"role", "active-replica"}},
			Store:  Refused,
			Why:    "both servers take writes, so both grant the same key, and the later write wins",
			Cure:   "set active-replica and multi-master to no",
			Source: "https://docs.keydb.dev/docs/active-rep",
		},
		{
			Name:   "Dragonfly",
			Signs:  []Sign{{"dragonfly_version", ""}},
			Store:  Untested,
			Why:    "it runs scripts in another engine, on several threads",
			Cure:   "leave the default flags of scripts",
			Source: "https://www.dragonflydb.io/docs/managing-dragonfly/scripting",
		},
		{
			Name:   "Amazon ElastiCache",
			Signs:  []Sign{{"os", "Amazon ElastiCache"}},
			Store:  Untested,
			Why:    "it is Redis or Valkey, and a failover loses what its replicas lack",
			Cure:   "set replicas=1 in the URL, or use MemoryDB",
			Source: "https://docs.aws.amazon.com/AmazonElastiCache/latest/dg/Replication.html",
		},
		{
			Name:   "Amazon MemoryDB",
			Signs:  []Sign{{"os", "Amazon MemoryDB"}},
			Store:  Untested,
			Why:    "it is Redis or Valkey, and a write that it has answered outlives a failover",
			Cure:   "use redis+cluster in the URL",
			Source: "https://docs.aws.amazon.com/memorydb/latest/devguide/consistency.html",
		},
		{
			Name:   "Kvrocks",
			Signs:  []Sign{{"kvrocks_version", ""}},
			Store:  Untested,
			Why:    "it runs Redis' scripts over RocksDB",
			Cure:   "use Valkey if you can choose",
			Source: "https://kvrocks.apache.org/docs/supported-commands",
		},
		{
			Name:   "Garnet",
			Signs:  []Sign{{"garnet_version", ""}},
			Store:  Untested,
			Why:    "its scripts are off by default",
			Cure:   "start it with --lua",
			Source: "https://microsoft.github.io/garnet/docs/commands/scripting",
		},
	},
}
