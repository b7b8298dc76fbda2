package product

// PostgreSQL are the products that speak PostgreSQL's protocol. Their signs are the text of
// version(), and the names of what a product has beside PostgreSQL: "relation SCHEMA.NAME",
// "function NAME", "extension NAME" and "setting NAME".
var PostgreSQL = &Protocol{
	Products: []Product{
		{
			Name:   "PostgreSQL",
			Signs:  []Sign{{"version()", "PostgreSQL "}},
			Source: "https://www.postgresql.org/docs/current/functions-info.html",
		},
		{
			Name:  "CockroachDB",
			Signs: []Sign{{"version()", "CockroachDB"}},
			Store: Refused, Locks: Refused,
			Why:    "its advisory locks do nothing, and it has no LISTEN",
			Cure:   "use PostgreSQL",
			Source: "https://www.cockroachlabs.com/docs/stable/postgresql-compatibility",
		},
		{
			Name:  "YugabyteDB",
			Signs: []Sign{{"version()", "-YB-"}},
			Store: Refused, Locks: Untested,
			Why:    "READ COMMITTED is a snapshot of the whole transaction, and there is no LISTEN, unless flags of the cluster change that",
			Cure:   "use PostgreSQL",
			Source: "https://docs.yugabyte.com/stable/architecture/transactions/isolation-levels/",
		},
		{
			Name:  "Amazon Redshift",
			Signs: []Sign{{"version()", "Redshift"}},
			Store: Refused, Locks: Refused,
			Why:    "its primary keys are not enforced, so two claims of a key both succeed",
			Cure:   "use PostgreSQL",
			Source: "https://docs.aws.amazon.com/redshift/latest/dg/c_unsupported-postgresql-features.html",
		},
		{
			Name:  "Amazon Aurora DSQL",
			Signs: []Sign{{"relation sys.iam_pg_role_mappings", ""}},
			Store: Refused, Locks: Refused,
			Why:    "it has no PL/pgSQL, no sequences and no advisory locks",
			Cure:   "use Amazon Aurora PostgreSQL, or PostgreSQL",
			Source: "https://docs.aws.amazon.com/aurora-dsql/latest/userguide/working-with-postgresql-compatibility-unsupported-features.html",
		},
		{
			Name:  "Amazon Aurora PostgreSQL",
			Signs: []Sign{{"function aurora_version", ""}},
			Store: Untested, Locks: Untested,
			Why:    "it is PostgreSQL's engine on Amazon's storage",
			Cure:   "use the cluster endpoint, which leads to the writer",
			Source: "https://docs.aws.amazon.com/AmazonRDS/latest/AuroraUserGuide/aurora_version.html",
		},
		{
			Name:  "AlloyDB",
			Signs: []Sign{{"setting alloydb.enable_pgaudit", ""}},
			Store: Untested, Locks: Untested,
			Why:    "it is PostgreSQL's engine on Google's storage",
			Cure:   "use the address of the primary instance",
			Source: "https://cloud.google.com/alloydb/docs/reference/alloydb-flags",
		},
		{
			Name:  "Citus",
			Signs: []Sign{{"extension citus", ""}},
			Store: Untested, Locks: Untested,
			Why:    "tables that are not distributed, and all advisory locks, belong to one node",
			Cure:   "have all processes connect to the coordinator, and do not distribute the tables of dibs",
			Source: "https://docs.citusdata.com/en/stable/get_started/concepts.html",
		},
		{
			Name:  "EDB Postgres Distributed",
			Signs: []Sign{{"extension bdr", ""}},
			Store: Refused, Locks: Refused,
			Why:    "each node takes writes, with row locks, advisory locks and a clock of its own",
			Cure:   "give dibs a PostgreSQL outside the cluster",
			Source: "https://www.enterprisedb.com/docs/pgd/latest/concepts",
		},
	},
	Questions: []string{
		"SELECT 'version()', version()",
		"SELECT 'relation ' || n.nspname || '.' || c.relname, '' FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace" +
			" WHERE n.nspname = 'sys' AND c.relname = 'iam_pg_role_mappings'",
		"SELECT 'function ' || proname, '' FROM pg_proc WHERE proname = 'aurora_version'" +
			" UNION ALL SELECT 'extension ' || extname, '' FROM pg_extension WHERE extname IN ('citus', 'bdr')" +
			" UNION ALL SELECT 'setting ' || name, '' FROM pg_settings WHERE name = 'alloydb.enable_pgaudit'",
	},
}
