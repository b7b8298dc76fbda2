// Package frameworks shows dibs beside the frameworks and query builders that Go services
// use. docs/guides/frameworks.md quotes its functions, and a test runs them. Each serves
// POST /charges: the body is the amount, and the answer names the charge.
package frameworks
