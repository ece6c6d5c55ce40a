package web_test

import (
	"crypto/sha256"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/fleetslots/dispatcher/operators"
	"github.com/fleetslots/dispatcher/store"
)

// TestOperatorTokensHavePages checks the pages of operator tokens in a browser: an admin creates a token, whose secret is shown once,
// rotates it and deletes it. The list shows what the API lists.
func TestOperatorTokensHavePages(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	tab := openTab(t)
	tab.open(b.URL + "/system")
	tab.click(`a[href="/tokens"]`)
	tab.waitForJS(`location.pathname === "/tokens"`)
	readSecret := func() string {
		tab.waitForJS(`document.querySelector("#secret") && document.readyState === "complete"`)
		return tab.elementText("#secret")
	}
	isAccepted := func(secret string) bool {
		hash := sha256.Sum256([]byte(secret))
		_, err := b.store.TokenByHash(t.Context(), hash[:])
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			t.Fatal(err)
		}
		return err == nil
	}
	tab.click(`a[href="/new-token"]`)
	tab.waitForJS(`document.querySelector("#role")`)
	tab.setInput("#name", "nightly build")
	tab.setInput("#role", "caller")
	tab.setInput("#pools", "ci-* nightly")
	tab.checkScreen("token-new")
	tab.click("form.fields button.primary")
	first := readSecret()
	tab.checkScreen("token-secret")
	tab.click("main a")
	tab.waitForJS(`location.pathname === "/tokens" && document.readyState === "complete"`)
	var list operators.TokenList
	b.Do("GET", "/v1/tokens", nil, &list)
	if len(list.Tokens) != 1 || list.Tokens[0].Name != "nightly build" || list.Tokens[0].Role != "caller" || !slices.Equal(list.Tokens[0].Pools, []string{"ci-*", "nightly"}) {
		t.Fatalf("the API lists %+v", list.Tokens)
	}
	row := "#token-" + itoa(list.Tokens[0].ID)
	expectContains(t, tab.elementText(row), "nightly build", "caller", "ci-*", "never")
	if strings.Contains(tab.elementText("main"), first) || !isAccepted(first) {
		t.Errorf("the list shows the secret, or the secret is not accepted")
	}
	tab.checkScreen("tokens")
	tab.click(row + ` a[href$="/rotate"]`)
	tab.waitForJS(`document.querySelector("h1").textContent === "Rotate the token of nightly build"`)
	tab.click("form.fields button.danger")
	if second := readSecret(); second == first || !isAccepted(second) || isAccepted(first) {
		t.Errorf("rotated from %d to %d characters: the new one is accepted: %v, the older one: %v", len(first), len(second), isAccepted(second), isAccepted(first))
	}
	tab.open(b.URL + "/tokens")
	tab.click(row + ` a[href$="/delete"]`)
	tab.waitForJS(`document.querySelector("h1").textContent === "Delete the token of nightly build"`)
	tab.checkScreen("token-delete")
	tab.click("form.fields button.danger")
	tab.waitForJS(`location.pathname === "/tokens" && document.querySelector(".empty")`)
	if b.Do("GET", "/v1/tokens", nil, &list); len(list.Tokens) != 0 {
		t.Errorf("after the deletion the API lists %+v", list.Tokens)
	}
}

// TestOnlyAdminsSeeOperatorTokens checks that a visitor with a lower role sees no operator token and cannot change one.
func TestOnlyAdminsSeeOperatorTokens(t *testing.T) {
	t.Parallel()
	b := startSignedOut(t)
	var made operators.TokenCreated
	b.Do("POST", "/v1/tokens", map[string]any{"name": "ann", "role": "operator"}, &made)
	ann := b.signIn(made.Secret)
	for _, path := range []string{"/tokens", "/new-token", "/tokens/" + itoa(made.ID) + "/rotate", "/tokens/" + itoa(made.ID) + "/delete"} {
		if status, text, _ := b.getPage(path, ann); status != http.StatusOK || !strings.Contains(text, "Only an admin can") || strings.Contains(text, `<form method="post" class="fields"`) || strings.Contains(text, "token-"+itoa(made.ID)) {
			t.Errorf("%s: %d %s", path, status, text)
		}
		if path == "/tokens" {
			continue
		}
		if status, _, _ := b.postForm(path, url.Values{"name": {"eve"}, "role": {"admin"}}, nil, ann); status != http.StatusForbidden {
			t.Errorf("POST %s: %d", path, status)
		}
	}
	var list operators.TokenList
	if b.Do("GET", "/v1/tokens", nil, &list); len(list.Tokens) != 1 {
		t.Errorf("tokens %+v", list.Tokens)
	}
}
