invoke() {
  body=$(cat)
  started=${body#*\"started\":\"} started=${started%%\"*}
  sleep 300 &
  setsid sleep 300 &
  ( setsid sleep 300 & )
  sleep 0.05
  echo $$ >"$started"
  sleep 300
}
