package mysqlstore

import "testing"

// TestNamesInSQL: names of tables get the store's prefix, variables stay as they are.
func TestNamesInSQL(t *testing.T) {
	for text, want := range map[string]string{
		"":                        "",
		"SELECT 1":                "SELECT 1",
		"@key":                    "app.`own_key`",
		"a FROM @key x,@holder":   "a FROM app.`own_key` x,app.`own_holder`",
		"SET @F=1 WHERE @N>@key_": "SET @F=1 WHERE @N>app.`own_key`_",
		"'@waiter'@":              "'app.`own_waiter`'@",
	} {
		if got := (namer{"own", "app."}).sql(text); got != want {
			t.Errorf("%s became %s, want %s", text, got, want)
		}
	}
}
