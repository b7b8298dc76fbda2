//go:build unix

package servertest

// Install installs the programs of Redis, PostgreSQL, PgBouncer and MariaDB
// where they are missing, as a test that asks for such a server does. What is
// missing and cannot be installed is an error that says what to do. Valkey and
// MySQL are left to the tests that ask for them.
func Install() error {
	for _, p := range []*program{&redisProgram, &postgresProgram, &pgbouncerProgram, &mariadbProgram, &mariadbInstallProgram, &mariadbClientProgram} {
		if _, err := p.find(); err != nil {
			return err
		}
	}
	return nil
}
