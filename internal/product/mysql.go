package product

// MySQL are the products that speak MySQL's protocol. Their signs are variables and the status of the
// server, and what a proxy answers itself.
var MySQL = &Protocol{
	Products: []Product{
		{
			Name:   "MariaDB",
			Signs:  []Sign{{"version", "MariaDB"}},
			Source: "https://mariadb.com/docs/server/server-management/variables-and-modes/server-system-variables#version",
		},
		{
			Name: "MySQL",
			Signs: []Sign{
				{"version_comment", "MySQL"}, {"version_comment", "Source distribution"},
				{"version_comment", "(Debian)"}, {"version_comment", "(Ubuntu)"},
			},
			Source: "https://dev.mysql.com/doc/refman/8.4/en/server-system-variables.html#sysvar_version_comment",
		},
		{
			Name:  "Percona Server",
			Signs: []Sign{{"version_comment", "Percona Server"}},
			Store: Untested, Locks: Untested,
			Why:    "it is MySQL with more engines",
			Cure:   "leave the tables of dibs in InnoDB",
			Source: "https://docs.percona.com/percona-server/8.4/feature-comparison.html",
		},
		{
			Name:  "a Galera cluster",
			Signs: []Sign{{"wsrep_provider_name", "Galera"}},
			Store: Refused, Locks: Refused,
			Why: "each node has its own row locks, named locks and clock, so two nodes grant a key twice",
			Cure: "give dibs a server outside the cluster, with a semi-synchronous replica, " +
				"or use PostgreSQL or Redis",
			Source: "https://mariadb.com/docs/galera-cluster/reference/mariadb-galera-cluster-known-limitations",
		},
		{
			Name:  "a MySQL group with several primaries",
			Signs: []Sign{{"group_replication_single_primary_mode", "OFF"}},
			Store: Refused, Locks: Refused,
			Why:    "each member has its own row locks, named locks and clock",
			Cure:   "switch the group to one primary: SELECT group_replication_switch_to_single_primary_mode()",
			Source: "https://dev.mysql.com/doc/refman/8.4/en/group-replication-limitations.html",
		},
		{
			Name:  "Amazon Aurora MySQL",
			Signs: []Sign{{"aurora_version", ""}},
			Store: Untested, Locks: Untested,
			Why:    "it is MySQL's engine on Amazon's storage",
			Cure:   "use the cluster endpoint, which leads to the writer",
			Source: "https://docs.aws.amazon.com/AmazonRDS/latest/AuroraUserGuide/AuroraMySQL.Updates.Versions.html",
		},
		{
			Name:  "TiDB",
			Signs: []Sign{{"version", "TiDB"}},
			Store: Refused, Locks: Untested,
			Why:    "with SKIP LOCKED it locks nothing, and reports no error",
			Cure:   "use MySQL or MariaDB",
			Source: "https://github.com/pingcap/tidb/issues/69720",
		},
		{
			Name:  "Vitess",
			Signs: []Sign{{"version", "-Vitess"}, {"version", "-vitess"}},
			Store: Untested, Locks: Untested,
			Why:    "a transaction on several shards is not isolated as on one server",
			Cure:   "keep the tables of dibs in a keyspace that is not sharded",
			Source: "https://vitess.io/docs/reference/compatibility/mysql-compatibility/",
		},
		{
			Name:  "SingleStore",
			Signs: []Sign{{"memsql_version", ""}},
			Store: Refused, Locks: Refused,
			Why:    "it does not fully support user-defined variables, which the store's statements use",
			Cure:   "use MySQL or MariaDB",
			Source: "https://docs.singlestore.com/cloud/developer-resources/unsupported-mysql-features/",
		},
		{
			Name:  "ProxySQL",
			Signs: []Sign{{proxied, "(ProxySQL)"}},
			Store: Untested, Locks: Untested,
			Why:    "its rules decide which server gets a statement",
			Cure:   "send all statements of the user of dibs to one hostgroup with one writer",
			Source: "https://proxysql.com/documentation/multiplexing/",
		},
	},
	Questions: []string{
		"SHOW VARIABLES WHERE Variable_name IN ('version','version_comment'," +
			"'group_replication_single_primary_mode','aurora_version','memsql_version')",
		proxied,
		// The library that has joined a cluster. wsrep_on is ON without one, too.
		"SHOW STATUS WHERE Variable_name = 'wsrep_provider_name'",
	},
}

// proxied is a statement that ProxySQL answers itself, because the client of the command line begins
// with it.
const proxied = "select @@version_comment limit 1"
