package web

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"sync"
	"time"

	"github.com/fleetslots/dispatcher/dispatcher/api"
	"github.com/fleetslots/dispatcher/store"
)

const (
	// The prefix has browsers take the cookie only over TLS (or on the loopback),
	// and keep it from other hosts of the same domain.
	cookieName  = "__Host-dispatcher"
	sessionLife = 12 * time.Hour
	// The session of a page that stays open is checked so often.
	sessionRecheck = 5 * time.Second
)

// errSignedOut: there is no session, or its token has ended.
var errSignedOut = errors.New("nobody is signed in")

type sessionStore interface {
	OpenSession(ctx context.Context, session, token []byte, lasts time.Duration) error
	Session(ctx context.Context, session []byte) (token []byte, err error)
	CloseSession(ctx context.Context, session []byte) error
	TokenByHash(ctx context.Context, hash []byte) (store.Token, error)
}

// sessions are the sessions of signed-in visitors. They are kept in the ledger: any replica knows
// them, and a token that is revoked ends its sessions.
type sessions struct {
	ledger sessionStore
	admin  []byte // hash of the bootstrap token; nil: none
	linked sync.Mutex
	link   string // secret of a link that was not used; empty: none
	now    func() time.Time

	checked sync.Map // hash of a session -> checkedSession
}

type checkedSession struct {
	who   api.Operator
	until time.Time
}

func hashOf(token string) []byte {
	if token == "" {
		return nil
	}
	sum := sha256.Sum256([]byte(token))
	return sum[:]
}

// open signs in with an operator token and returns the secret of the session.
func (s *sessions) open(ctx context.Context, token string) (secret string, err error) {
	hash := hashOf(token)
	who, err := s.operator(ctx, hash)
	if err != nil {
		return "", err
	}
	if !who.May("viewer") {
		return "", errSignedOut
	}
	return s.begin(ctx, hash)
}

// follow signs in by the link, which is of no use afterwards.
func (s *sessions) follow(ctx context.Context, link string) (secret string, err error) {
	s.linked.Lock()
	defer s.linked.Unlock()
	if s.link == "" || subtle.ConstantTimeCompare([]byte(link), []byte(s.link)) == 0 {
		return "", errSignedOut
	}
	if secret, err = s.begin(ctx, s.admin); err == nil {
		s.link = ""
	}
	return secret, err
}

func (s *sessions) begin(ctx context.Context, token []byte) (secret string, err error) {
	secret = rand.Text() + rand.Text()
	return secret, s.ledger.OpenSession(ctx, hashOf(secret), token, sessionLife)
}

// operator is the owner of the token with that hash.
func (s *sessions) operator(ctx context.Context, hash []byte) (api.Operator, error) {
	if hash == nil {
		return api.Operator{}, errSignedOut
	}
	if s.admin != nil && subtle.ConstantTimeCompare(hash, s.admin) == 1 {
		return api.Operator{Name: "bootstrap", Role: "admin"}, nil
	}
	t, err := s.ledger.TokenByHash(ctx, hash)
	switch {
	case errors.Is(err, store.ErrNotFound) || err == nil && t.Device != "":
		return api.Operator{}, errSignedOut
	case err != nil:
		return api.Operator{}, err
	}
	return api.Operator{Name: t.Name, Role: t.Role, Token: t.ID}, nil
}

// who returns the operator signed in with that secret; errSignedOut: none.
func (s *sessions) who(ctx context.Context, secret string) (api.Operator, error) {
	token, err := s.ledger.Session(ctx, hashOf(secret))
	if errors.Is(err, store.ErrNotFound) {
		return api.Operator{}, errSignedOut
	}
	if err != nil {
		return api.Operator{}, err
	}
	return s.operator(ctx, token)
}

// still returns the operator, at most sessionRecheck old: for pages that stay open.
func (s *sessions) still(ctx context.Context, secret string) (api.Operator, error) {
	key := sha256.Sum256([]byte(secret))
	if known, ok := s.checked.Load(key); ok {
		if c, ok := known.(checkedSession); ok && s.now().Before(c.until) {
			return c.who, nil
		}
	}
	who, err := s.who(ctx, secret)
	if errors.Is(err, errSignedOut) {
		s.checked.Delete(key)
	}
	if err == nil {
		s.checked.Store(key, checkedSession{who, s.now().Add(sessionRecheck)})
	}
	return who, err
}

// close ends a session.
func (s *sessions) close(ctx context.Context, secret string) error {
	s.checked.Delete(sha256.Sum256([]byte(secret)))
	return s.ledger.CloseSession(ctx, hashOf(secret))
}
