package operators

import (
	"time"
)

// NewToken is the request for an operator token. Package api defines what each role may do.
type NewToken struct {
	Name      string     `json:"name" minLength:"1" maxLength:"200" doc:"Operator or service that uses the token; the audit log shows it"`
	Role      string     `json:"role" enum:"viewer,operator,admin,verifier,caller"`
	Pools     []string   `json:"pools,omitempty" nullable:"true" maxItems:"32" doc:"Role caller only: the pools whose slots it may lease, as patterns: a name in which * stands for any text"`
	LimitSets []string   `json:"limit_sets,omitempty" nullable:"true" maxItems:"32" doc:"Role caller only: the limit sets that it may take from, as patterns. A caller needs pools or limit_sets"`
	ExpiresAt *time.Time `json:"expires_at,omitempty" nullable:"true" doc:"When the token expires; default: never"`
}

// Token is an operator token, without its secret.
type Token struct {
	ID        int64    `json:"id"`
	Name      string   `json:"name"`
	Role      string   `json:"role" enum:"viewer,operator,admin,verifier,caller"`
	Pools     []string `json:"pools,omitempty" doc:"Role caller only"`
	LimitSets []string `json:"limit_sets,omitempty" doc:"Role caller only"`
	Created   Time     `json:"created_at"`
	ExpiresAt *Time    `json:"expires_at" nullable:"true"`
	LastUsed  *Time    `json:"last_used_at" nullable:"true" doc:"Only in lists, accurate to one minute; null: never used"`
	Requests  int64    `json:"requests,omitempty" doc:"Only in lists: number of requests with this token until last_used_at"`
}

// TokenCreated is a new operator token with its secret.
type TokenCreated struct {
	Token

	Secret string `json:"token" doc:"Shown only once; empty when a request with an Idempotency-Key is sent again"`
}

// TokenList is a page of operator tokens.
type TokenList struct {
	Tokens        []Token `json:"tokens"`
	NextPageToken string  `json:"next_page_token,omitempty"`
}

// Tokens has the calls about operator tokens.
type Tokens struct {
	List   List[All, Token]             `op:"GET /v1/tokens" id:"listTokens" role:"admin" doc:"List operator tokens"`
	Create Call[NewToken, TokenCreated] `op:"POST /v1/tokens" id:"createToken" role:"admin" status:"201" once:"true" doc:"Create an operator token"`
	Rotate Call[int64, TokenCreated]    `op:"POST /v1/tokens/{id}/rotate" id:"rotateOperatorToken" role:"admin" doc:"Replace the secret of an operator token, everywhere within 5 s"`
	Revoke Call[int64, Token]           `op:"DELETE /v1/tokens/{id}" id:"revokeToken" role:"admin" doc:"Revoke an operator token, everywhere within 5 s"`
}
