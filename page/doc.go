// Package page is the operator's page: who waits for which key, which outcomes a person must
// decide, and the life of one key. It is one HTML file that updates itself.
//
//	operators := page.New(store, &page.Options{Logger: logger})
//	defer operators.Close()
//	http.ListenAndServe("127.0.0.1:7331", operators)
//
// Without [Options.Viewer] it answers browsers on its own host only.
package page
