package store

import "database/sql"

// DB is the database itself, for tests that look behind the methods.
func (s *Store) DB() *sql.DB { return s.db.DB }

// Text is a statement in the words of the database.
func (s *Store) Text(query string) string { return s.text(query) }
