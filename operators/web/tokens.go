package web

import (
	"net/http"
	"strconv"
	"strings"

	"github.com/fleetslots/dispatcher/operators"
)

// tokenPages list, create, rotate and delete operator tokens.
type tokenPages struct {
	*pageSender

	api client
}

func (t *tokenPages) registerRoutes(target *site) {
	target.addPage("/tokens", t.loadList)
	target.addPage("/new-token", t.loadCreatePage)
	target.addPage("/tokens/{id}/rotate", t.newActionPageLoader("Rotate"))
	target.addPage("/tokens/{id}/delete", t.newActionPageLoader("Delete"))
	target.addSecretForm("/new-token", "admin", "system", t.createToken)
	target.addSecretForm("/tokens/{id}/rotate", "admin", "system", t.rotateToken)
	target.addForm("/tokens/{id}/delete", "admin", t.deleteToken)
}

func (t *tokenPages) loadList(r *http.Request) (page, error) {
	isAdmin, pager := visitorOf(r.Context()).May("admin"), newPager(r, nil)
	var list operators.TokenList
	var err error
	if isAdmin {
		err = t.api.get(r, operators.Path("tokens"), pager.query(100), &list)
	}
	return page{title: "Operator tokens", section: "system", template: "tokens", data: map[string]any{
		"Tokens": list.Tokens, "Next": pager.nextAddress(list.NextPageToken), "First": pager.isFirst(), "Visible": isAdmin, "Admin": t.mayOfferActions(r, "admin"),
	}}, err
}

func (t *tokenPages) loadCreatePage(r *http.Request) (page, error) {
	return page{title: "New token", section: "system", template: "token-new", data: map[string]any{"Admin": t.mayOfferActions(r, "admin")}}, nil
}

func (t *tokenPages) createToken(r *http.Request) (tokenSecret, error) {
	made, err := t.api.Tokens.Create(r.Context(), operators.NewToken{
		Name: strings.TrimSpace(r.PostForm.Get("name")), Role: r.PostForm.Get("role"),
		Pools: strings.Fields(r.PostForm.Get("pools")), LimitSets: strings.Fields(r.PostForm.Get("limit_sets")),
	})
	return tokenSecret{"Token of " + made.Name, made.Secret, "Its role is " + made.Role + ".", "/tokens"}, err
}

// newActionPageLoader returns the loader of the page that asks for confirmation before a token is rotated or deleted. verb is rotate or
// delete.
func (t *tokenPages) newActionPageLoader(verb string) pageLoader {
	return func(r *http.Request) (page, error) {
		shown := page{title: verb + " token", section: "system", template: "token-act"}
		id, may := r.PathValue("id"), t.mayOfferActions(r, "admin")
		data := map[string]any{"Verb": verb, "Admin": may, "Mine": id == strconv.FormatInt(visitorOf(r.Context()).Token, 10)}
		shown.data = data
		if !may {
			return shown, nil
		}
		for token, err := range t.api.Tokens.List(r.Context(), operators.All{}) {
			if err != nil {
				return page{}, err
			}
			if strconv.FormatInt(token.ID, 10) == id {
				data["Token"] = token
				return shown, nil
			}
		}
		return page{}, &operators.Problem{Status: http.StatusNotFound, Detail: "No valid operator token has this number."}
	}
}

func (t *tokenPages) rotateToken(r *http.Request) (tokenSecret, error) {
	var made operators.TokenCreated
	err := t.api.Do(r.Context(), operators.Request{Method: http.MethodPost, Path: operators.Path("tokens", r.PathValue("id"), "rotate")}, &made)
	return tokenSecret{"Token of " + made.Name, made.Secret, "The older secret ends within 5 s, and so do the sessions that began with it.", "/tokens"}, err
}

func (t *tokenPages) deleteToken(r *http.Request) (nextPath, messageKey string, err error) {
	return "/tokens", "token-deleted", t.api.Do(r.Context(), operators.Request{Method: http.MethodDelete, Path: operators.Path("tokens", r.PathValue("id"))}, nil)
}
