/*M!999999\- enable the sandbox mode */ 

/*!40101 SET @OLD_CHARACTER_SET_CLIENT=@@CHARACTER_SET_CLIENT */;
/*!40101 SET @OLD_CHARACTER_SET_RESULTS=@@CHARACTER_SET_RESULTS */;
/*!40101 SET @OLD_COLLATION_CONNECTION=@@COLLATION_CONNECTION */;
/*!40101 SET NAMES utf8mb4 */;
/*!40103 SET @OLD_TIME_ZONE=@@TIME_ZONE */;
/*!40103 SET TIME_ZONE='+00:00' */;
/*!40014 SET @OLD_UNIQUE_CHECKS=@@UNIQUE_CHECKS, UNIQUE_CHECKS=0 */;
/*!40014 SET @OLD_FOREIGN_KEY_CHECKS=@@FOREIGN_KEY_CHECKS, FOREIGN_KEY_CHECKS=0 */;
/*!40101 SET @OLD_SQL_MODE=@@SQL_MODE, SQL_MODE='NO_AUTO_VALUE_ON_ZERO' */;
/*!40111 SET @OLD_SQL_NOTES=@@SQL_NOTES, SQL_NOTES=0 */;
DROP TABLE IF EXISTS `idem_machine`;
/*!40101 SET @saved_cs_client     = @@character_set_client */;
/*!40101 SET character_set_client = utf8mb4 */;
CREATE TABLE `idem_machine` (
  `machine` varbinary(100) NOT NULL,
  `from_state` varbinary(100) NOT NULL,
  `to_state` varbinary(100) NOT NULL,
  PRIMARY KEY (`machine`,`from_state`,`to_state`)
) ENGINE=InnoDB DEFAULT CHARSET=latin1 COLLATE=latin1_swedish_ci;
/*!40101 SET character_set_client = @saved_cs_client */;

LOCK TABLES `idem_machine` WRITE;
/*!40000 ALTER TABLE `idem_machine` DISABLE KEYS */;
/*!40000 ALTER TABLE `idem_machine` ENABLE KEYS */;
UNLOCK TABLES;
DROP TABLE IF EXISTS `idem_record`;
/*!40101 SET @saved_cs_client     = @@character_set_client */;
/*!40101 SET character_set_client = utf8mb4 */;
CREATE TABLE `idem_record` (
  `key_hash` binary(32) NOT NULL,
  `type` tinyint(4) NOT NULL,
  `state` tinyint(4) NOT NULL,
  `mode` tinyint(4) NOT NULL,
  `kind` tinyint(4) NOT NULL,
  `flags` smallint(6) NOT NULL,
  `attempt` bigint(20) NOT NULL,
  `fence` bigint(20) NOT NULL,
  `rev` bigint(20) NOT NULL,
  `created` bigint(20) NOT NULL,
  `updated` bigint(20) NOT NULL,
  `lease_until` bigint(20) NOT NULL,
  `expires` bigint(20) NOT NULL,
  `nonce` binary(8) NOT NULL,
  `fingerprint` binary(32) DEFAULT NULL,
  `scope` varbinary(200) NOT NULL,
  `id` varbinary(255) NOT NULL,
  `subject` varbinary(255) NOT NULL,
  `result` longblob NOT NULL,
  PRIMARY KEY (`key_hash`),
  KEY `idem_record_state` (`state`,`expires`)
) ENGINE=InnoDB DEFAULT CHARSET=latin1 COLLATE=latin1_swedish_ci ROW_FORMAT=DYNAMIC;
/*!40101 SET character_set_client = @saved_cs_client */;

LOCK TABLES `idem_record` WRITE;
/*!40000 ALTER TABLE `idem_record` DISABLE KEYS */;
INSERT INTO `idem_record` VALUES
(0x1DF0DBDD25D1811E03191196346D22B0418132C7A83A552DCE443556C4DEACDA,1,3,0,0,0,1,1794831912341443,9162056098428192916,1794831912342,1794831912343,0,2110191912343,0x01AA9C244643A5D6,NULL,0x73686F70,0x656D707479,'',''),
(0x26D46483CB39687C0E36A078919181091A47480452E1C27620AE06A2993D274A,1,5,0,0,0,1,1794831912447292,3015882271349361481,1794831912448,1794831912451,0,1794835512451,0x774565AFCFCE9787,NULL,0x73686F70,0x72656C6561736564,'',''),
(0x2733D58FF5425FDE769335AE149CB2A236047621CE4CE998A843898CD88A9428,2,2,0,0,0,1,1794831912577153,-4746120909082917963,1794831912578,1794831912578,1794831912678,2110191912578,0x8BBDBF8C0930734D,NULL,0x757365722D31,0x4E555631636143586430324D793371354563454F545732447770756D6B796343,'',''),
(0x3E50BBF7D15B0EEC6AF5DC170A71F505D645CD0DE30F140354D37A64DD62515E,3,2,0,0,0,1,1794831912604018,-490895941488221788,1794831912605,1794831912605,1794831912705,1794918312605,0x0000000000000000,NULL,0x6C6F636B73,0x6F766572,0x6F776E65722D31,''),
(0x40FF26D9DB0BCB8F2E07ECE8D41B423560D57B2089B07905ABF3A51572D367EA,1,2,0,0,0,1,1794831912430627,8007850283787320724,1794831912431,1794831912431,1795436712431,2110191912431,0x835A47D530885BC3,NULL,0x73686F70,0x72756E6E696E67,'',''),
(0x492D2861996F9BE0B27F916841882C1703E957057C5527CE2101DA6B530AD96A,2,3,0,0,0,1,1794831912569513,-5074909188078023582,1794831912570,1794831912577,0,2110191912577,0x02740C128FEDBABD,NULL,0x757365722D31,0x5F69727A6D63524A6A4D4E75336566535743346846656F75646D516B51476257,'',0x666F726D2073746F726564),
(0x4C4759F427D185DD1B5B194C5D9E38D50620174C043CFCD2ED91F1541B9C9398,4,2,0,0,0,2,1794831913656289,-2170626549045245640,1794831913657,1794831913670,1794831943670,1794918313657,0x0000000000000000,NULL,0x736E6F77666C616B65,0x30,0x6338653062633534393434383362326339643237666264346362356638653665,0x3930373634373733363730),
(0x5257AE84BA581D611DDA6256410C5D28A052B6567F9604284A608CDFB2D8B79F,1,5,0,0,0,1,1794831912452593,-7289910188293846754,1794831912453,1794831912517,0,1794835512517,0xC59A6499630C36F3,NULL,0x73686F70,0x666F72676F7474656E,'',''),
(0x5568103655A10F0083D5315E1A71AE6A82989218872E98220BB1C3A966C4D687,3,5,0,0,0,1,1794831912614736,4566095910819038082,1794831912615,1794831912628,0,1797423912628,0x0000000000000000,NULL,0x6C6F636B73,0x676976656E2D6261636B,'',''),
(0x5C92937909354B9AD4698859B0311EDF795630AAEE0136EE9C6731383037F273,1,3,0,1,0,1,1794831912338721,-3147284925058563091,1794831912339,1794831912340,0,2110191912340,0x35051D8BB308B6A2,NULL,0x73686F70,0x68747470,'',0x485454502F312E31203230310D0A436F6E74656E742D547970653A20746578742F706C61696E0D0A0D0A6D616465),
(0x5D34AB941A7CDF1E9D2074B9566DCAE01922D5A8044FCDFD899BB54A33B45D22,1,4,0,0,0,1,1794831912337040,3073445786727554730,1794831912338,1794831912338,0,2110191912338,0x0DC6C8396D68C8FE,NULL,0x73686F70,0x6661696C6564,'',0x63617264206465636C696E6564),
(0x612E168D7093C46415BFA4DB7265DDFCB5AF31D401A0DEB5DD85955113909F20,1,3,0,0,0,1,1794831912340151,-5627559601308176804,1794831912341,1794831912341,0,2110191912341,0x0CC15C5FC7B3D777,NULL,0x73686F70,0x6279746573,'',0x000102030405060708090A0B0C0D0E0F101112131415161718191A1B1C1D1E1F202122232425262728292A2B2C2D2E2F303132333435363738393A3B3C3D3E3F404142434445464748494A4B4C4D4E4F505152535455565758595A5B5C5D5E5F606162636465666768696A6B6C6D6E6F707172737475767778797A7B7C7D7E7F808182838485868788898A8B8C8D8E8F909192939495969798999A9B9C9D9E9FA0A1A2A3A4A5A6A7A8A9AAABACADAEAFB0B1B2B3B4B5B6B7B8B9BABBBCBDBEBFC0C1C2C3C4C5C6C7C8C9CACBCCCDCECFD0D1D2D3D4D5D6D7D8D9DADBDCDDDEDFE0E1E2E3E4E5E6E7E8E9EAEBECEDEEEFF0F1F2F3F4F5F6F7F8F9FAFBFCFDFEFF),
(0x61874898927B63AA1F953F48D2932E178D886229738CD860629FB60F0C3848AB,1,3,0,0,0,1,1794831912345967,3514212713647404017,1794831912346,1794831912348,0,2110191912348,0xEDA7F3669445C1F4,NULL,0xE59586E5BA97,0xE8AEA2E58D9520276122205C3B2D2D,0xE78E8B,0xE694AFE4BB98E68890E58A9F),
(0x694679367891C3B8BCDBEF2543E3AAA679680CAFED635789D2E734AAB2D6E6E2,1,2,0,0,0,1,1794831912437762,8638574396361776471,1794831912438,1794831912438,1794831912538,2110191912438,0xB55718F5A4A159E6,NULL,0x73686F70,0x646F756274,'',''),
(0x6F8F73695B2A14B2825F8A198C7B0FBB2B2C98CADAF284A8997C58A071F2DDD5,2,1,0,0,0,0,1794831912528378,1399519793870247767,1794831912529,1794831912529,0,2110191912529,0x0000000000000000,NULL,0x757365722D31,0x747254634261736F594937553645317A4F5F44685650344951727542355A5042,'',''),
(0x82D9C47D85B92B6B1EDCCDCF02FC21CE8CF0B33BE292BA718B1915383CD1E501,1,3,0,0,8,1,1794831913632082,4770051648020650314,1794831912441,1794831913633,0,2110191913633,0xBF7E5F12188FC0E0,NULL,0x73686F70,0x64656369646564,'',0x706169642062792068616E64),
(0x926D0DB3C69B1312105CAF6C182A657422AFB7D35A5BA9F0E1715B2D397C5A83,2,3,0,0,4,0,1794831912563104,2109548389399053580,1794831912539,1794831912564,0,2110191912564,0x02B4377B62EEB3D2,NULL,0x757365722D31,0x524B646A45754D613064474B764D4D4C6A436C6C6A7379394F4C534D62544272,'',''),
(0xA62A2A69294067079E07D2879EEC986CB64B3FE7C0D32FFA77C63EC2176639B3,4,2,0,0,0,2,1794831913678596,8541613516642041192,1794831913679,1794831913690,1794831943690,1794918313679,0x0000000000000000,NULL,0x756964,0x30,0x6338653062633534393434383362326339643237666264346362356638653665,0x3237363036343334),
(0xAB16ECAF95C83B0BCB29FC5B895169BE2196DBFA53127EB93097828B7673785B,1,3,0,0,1,1,1794831912334128,2690975447628716385,1794831912335,1794831912336,0,2110191912336,0xA4C62B6800AF48C5,0x5D5D5D5D5D5D5D5D5D5D5D5D5D5D5D5D5D5D5D5D5D5D5D5D5D5D5D5D5D5D5D5D,0x73686F70,0x737563636565646564,'',0x7B226F72646572223A377D),
(0xB5D99BF0522ECE3AAC426E184417038666150A1E257414B6E3A494D9A45CD0DE,4,5,0,0,0,2,1794831913638563,7221915732715616195,1794831913639,1794831913646,0,0,0x0000000000000000,NULL,0x7365676D656E74,0x6F7264657273,'',0x32303031),
(0xCA58CE3E0DB37F2B9001B99B3168979BE20BDD7D4FF4D2D67C966B6FC3012BF4,1,2,1,0,0,1,1794831912439414,-7369089421153790614,1794831912440,1794831912440,1794831912540,2110191912440,0x5F8946EBA1E34AD5,NULL,0x73686F70,0x6C6F6F7365,'',''),
(0xCFC9436FC45215711102284B67EAD79C7DBCB77FD4819D44CD1A8A909DA76F5D,3,2,0,0,0,1,1794831912595528,-1514511652615058261,1794831912596,1794831912596,1795436712596,1794918312596,0x0000000000000000,NULL,0x6C6F636B73,0x68656C64,0x6F776E65722D31,''),
(0xE94D6D0FE0D18051F25A864D8B80F7AE32D55DA4013E8F14E655F0987C91561B,1,4,0,0,8,0,1794831912349628,7172138139882230417,1794831912350,1794831912350,0,2110191912350,0x0000000000000000,NULL,0x73686F70,0x736574746C6564,'',0x6E657665722061727269766564),
(0xEA6CCA6FFFF03E86B1AFE9B14A607AF3807E8AA7729BF79FD3619076DAAF8108,1,3,0,0,2,1,1794831912343120,-3637770967393447529,1794831912344,1794831912344,0,2110191912344,0x36E6CCAE29EB44DF,NULL,0x73686F70,0x6C61726765,'','');
/*!40000 ALTER TABLE `idem_record` ENABLE KEYS */;
UNLOCK TABLES;
DROP TABLE IF EXISTS `idem_version`;
/*!40101 SET @saved_cs_client     = @@character_set_client */;
/*!40101 SET character_set_client = utf8mb4 */;
CREATE TABLE `idem_version` (
  `version` int(11) NOT NULL
) ENGINE=InnoDB DEFAULT CHARSET=latin1 COLLATE=latin1_swedish_ci;
/*!40101 SET character_set_client = @saved_cs_client */;

LOCK TABLES `idem_version` WRITE;
/*!40000 ALTER TABLE `idem_version` DISABLE KEYS */;
INSERT INTO `idem_version` VALUES
(1);
/*!40000 ALTER TABLE `idem_version` ENABLE KEYS */;
UNLOCK TABLES;
/*!50003 SET @saved_sql_mode       = @@sql_mode */ ;
/*!50003 SET sql_mode              = 'STRICT_TRANS_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_AUTO_CREATE_USER,NO_ENGINE_SUBSTITUTION' */ ;
/*!50003 DROP FUNCTION IF EXISTS `idem_find_key` */;
/*!50003 SET @saved_cs_client      = @@character_set_client */ ;
/*!50003 SET @saved_cs_results     = @@character_set_results */ ;
/*!50003 SET @saved_col_connection = @@collation_connection */ ;
/*!50003 SET character_set_client  = utf8mb4 */ ;
/*!50003 SET character_set_results = utf8mb4 */ ;
/*!50003 SET collation_connection  = utf8mb4_general_ci */ ;
DELIMITER ;;
CREATE DEFINER=`idem`@`127.0.0.1` FUNCTION `idem_find_key`(p_scope varbinary(1000), p_id varbinary(1000)) RETURNS binary(32)
    READS SQL DATA
    SQL SECURITY INVOKER
begin
    declare v_request binary(32) default idem_key(1, p_scope, p_id);
    declare v_token binary(32) default idem_key(2, p_scope, p_id);
    if exists (select 1 from idem_record where key_hash = v_request) then
        return v_request;
    end if;
    return if(exists (select 1 from idem_record where key_hash = v_token), v_token, v_request);
end
;;
DELIMITER ;
/*!50003 SET sql_mode              = @saved_sql_mode */ ;
/*!50003 SET character_set_client  = @saved_cs_client */ ;
/*!50003 SET character_set_results = @saved_cs_results */ ;
/*!50003 SET collation_connection  = @saved_col_connection */ ;
/*!50003 SET @saved_sql_mode       = @@sql_mode */ ;
/*!50003 SET sql_mode              = 'STRICT_TRANS_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_AUTO_CREATE_USER,NO_ENGINE_SUBSTITUTION' */ ;
/*!50003 DROP FUNCTION IF EXISTS `idem_key` */;
/*!50003 SET @saved_cs_client      = @@character_set_client */ ;
/*!50003 SET @saved_cs_results     = @@character_set_results */ ;
/*!50003 SET @saved_col_connection = @@collation_connection */ ;
/*!50003 SET character_set_client  = utf8mb4 */ ;
/*!50003 SET character_set_results = utf8mb4 */ ;
/*!50003 SET collation_connection  = utf8mb4_general_ci */ ;
DELIMITER ;;
CREATE DEFINER=`idem`@`127.0.0.1` FUNCTION `idem_key`(p_type int, p_scope varbinary(1000), p_id varbinary(1000)) RETURNS binary(32)
    NO SQL
    DETERMINISTIC
    SQL SECURITY INVOKER
return unhex(sha2(concat(unhex(lpad(hex(p_type), 2, '0')),
    unhex(lpad(hex(length(p_scope)), 4, '0')), p_scope,
    unhex(lpad(hex(length(p_id)), 4, '0')), p_id), 256))
;;
DELIMITER ;
/*!50003 SET sql_mode              = @saved_sql_mode */ ;
/*!50003 SET character_set_client  = @saved_cs_client */ ;
/*!50003 SET character_set_results = @saved_cs_results */ ;
/*!50003 SET collation_connection  = @saved_col_connection */ ;
/*!50003 SET @saved_sql_mode       = @@sql_mode */ ;
/*!50003 SET sql_mode              = 'STRICT_TRANS_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_AUTO_CREATE_USER,NO_ENGINE_SUBSTITUTION' */ ;
/*!50003 DROP FUNCTION IF EXISTS `idem_kind_name` */;
/*!50003 SET @saved_cs_client      = @@character_set_client */ ;
/*!50003 SET @saved_cs_results     = @@character_set_results */ ;
/*!50003 SET @saved_col_connection = @@collation_connection */ ;
/*!50003 SET character_set_client  = utf8mb4 */ ;
/*!50003 SET character_set_results = utf8mb4 */ ;
/*!50003 SET collation_connection  = utf8mb4_general_ci */ ;
DELIMITER ;;
CREATE DEFINER=`idem`@`127.0.0.1` FUNCTION `idem_kind_name`(p_kind int) RETURNS varchar(4) CHARSET ascii COLLATE ascii_general_ci
    NO SQL
    DETERMINISTIC
    SQL SECURITY INVOKER
return case p_kind when 0 then 'raw' when 1 then 'http' when 2 then 'exec' end
;;
DELIMITER ;
/*!50003 SET sql_mode              = @saved_sql_mode */ ;
/*!50003 SET character_set_client  = @saved_cs_client */ ;
/*!50003 SET character_set_results = @saved_cs_results */ ;
/*!50003 SET collation_connection  = @saved_col_connection */ ;
/*!50003 SET @saved_sql_mode       = @@sql_mode */ ;
/*!50003 SET sql_mode              = 'STRICT_TRANS_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_AUTO_CREATE_USER,NO_ENGINE_SUBSTITUTION' */ ;
/*!50003 DROP FUNCTION IF EXISTS `idem_now_us` */;
/*!50003 SET @saved_cs_client      = @@character_set_client */ ;
/*!50003 SET @saved_cs_results     = @@character_set_results */ ;
/*!50003 SET @saved_col_connection = @@collation_connection */ ;
/*!50003 SET character_set_client  = utf8mb4 */ ;
/*!50003 SET character_set_results = utf8mb4 */ ;
/*!50003 SET collation_connection  = utf8mb4_general_ci */ ;
DELIMITER ;;
CREATE DEFINER=`idem`@`127.0.0.1` FUNCTION `idem_now_us`() RETURNS bigint(20)
    NO SQL
    SQL SECURITY INVOKER
return timestampdiff(microsecond, '1970-01-01', utc_timestamp(6))
;;
DELIMITER ;
/*!50003 SET sql_mode              = @saved_sql_mode */ ;
/*!50003 SET character_set_client  = @saved_cs_client */ ;
/*!50003 SET character_set_results = @saved_cs_results */ ;
/*!50003 SET collation_connection  = @saved_col_connection */ ;
/*!50003 SET @saved_sql_mode       = @@sql_mode */ ;
/*!50003 SET sql_mode              = 'STRICT_TRANS_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_AUTO_CREATE_USER,NO_ENGINE_SUBSTITUTION' */ ;
/*!50003 DROP FUNCTION IF EXISTS `idem_random_rev` */;
/*!50003 SET @saved_cs_client      = @@character_set_client */ ;
/*!50003 SET @saved_cs_results     = @@character_set_results */ ;
/*!50003 SET @saved_col_connection = @@collation_connection */ ;
/*!50003 SET character_set_client  = utf8mb4 */ ;
/*!50003 SET character_set_results = utf8mb4 */ ;
/*!50003 SET collation_connection  = utf8mb4_general_ci */ ;
DELIMITER ;;
CREATE DEFINER=`idem`@`127.0.0.1` FUNCTION `idem_random_rev`() RETURNS bigint(20)
    NO SQL
    SQL SECURITY INVOKER
begin
    declare v_rev bigint default cast(conv(hex(random_bytes(8)), 16, -10) as signed);
    return if(v_rev = 0, 1, v_rev);
end
;;
DELIMITER ;
/*!50003 SET sql_mode              = @saved_sql_mode */ ;
/*!50003 SET character_set_client  = @saved_cs_client */ ;
/*!50003 SET character_set_results = @saved_cs_results */ ;
/*!50003 SET collation_connection  = @saved_col_connection */ ;
/*!50003 SET @saved_sql_mode       = @@sql_mode */ ;
/*!50003 SET sql_mode              = 'STRICT_TRANS_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_AUTO_CREATE_USER,NO_ENGINE_SUBSTITUTION' */ ;
/*!50003 DROP FUNCTION IF EXISTS `idem_state_name` */;
/*!50003 SET @saved_cs_client      = @@character_set_client */ ;
/*!50003 SET @saved_cs_results     = @@character_set_results */ ;
/*!50003 SET @saved_col_connection = @@collation_connection */ ;
/*!50003 SET character_set_client  = utf8mb4 */ ;
/*!50003 SET character_set_results = utf8mb4 */ ;
/*!50003 SET collation_connection  = utf8mb4_general_ci */ ;
DELIMITER ;;
CREATE DEFINER=`idem`@`127.0.0.1` FUNCTION `idem_state_name`(p_state int) RETURNS varchar(10) CHARSET ascii COLLATE ascii_general_ci
    NO SQL
    DETERMINISTIC
    SQL SECURITY INVOKER
return case p_state when 1 then 'issued' when 2 then 'executing'
    when 3 then 'succeeded' when 4 then 'failed' when 5 then 'free' end
;;
DELIMITER ;
/*!50003 SET sql_mode              = @saved_sql_mode */ ;
/*!50003 SET character_set_client  = @saved_cs_client */ ;
/*!50003 SET character_set_results = @saved_cs_results */ ;
/*!50003 SET collation_connection  = @saved_col_connection */ ;
/*!50003 SET @saved_sql_mode       = @@sql_mode */ ;
/*!50003 SET sql_mode              = 'STRICT_TRANS_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_AUTO_CREATE_USER,NO_ENGINE_SUBSTITUTION' */ ;
/*!50003 DROP PROCEDURE IF EXISTS `idem_begin` */;
/*!50003 SET @saved_cs_client      = @@character_set_client */ ;
/*!50003 SET @saved_cs_results     = @@character_set_results */ ;
/*!50003 SET @saved_col_connection = @@collation_connection */ ;
/*!50003 SET character_set_client  = utf8mb4 */ ;
/*!50003 SET character_set_results = utf8mb4 */ ;
/*!50003 SET collation_connection  = utf8mb4_general_ci */ ;
DELIMITER ;;
CREATE DEFINER=`idem`@`127.0.0.1` PROCEDURE `idem_begin`(in p_scope varbinary(1000), in p_id varbinary(1000),
    in p_fingerprint varbinary(100), in p_mode varchar(20), in p_lease_ms bigint,
    in p_ttl_ms bigint, out o_verdict varchar(10), out o_fence bigint,
    out o_kind varchar(4), out o_result longblob)
    MODIFIES SQL DATA
    SQL SECURITY INVOKER
idem: begin
    declare v_us, v_ms, v_rev, v_held, v_last_fence, v_created, v_until, v_expires, v_attempt bigint;
    declare v_state, v_old_mode, v_old_kind, v_flags, v_loose, v_print_len int;
    declare v_key, v_print binary(32);
    declare v_lease bigint default coalesce(p_lease_ms, 30000);
    declare v_ttl bigint default coalesce(p_ttl_ms, 86400000);
    declare v_blob longblob;
    declare v_refused, v_there, v_none, v_counts, v_over, v_again bool default false;
    declare continue handler for 1062 set v_refused = true, v_there = true;
    declare continue handler for 1205 set v_refused = true;
    declare continue handler for not found set v_none = true;

    set o_verdict = null, o_fence = null, o_kind = null, o_result = null;
    call idem_check(p_scope, p_id, v_lease, v_ttl);
    if lower(coalesce(p_mode, 'strict')) not in ('strict', 'loose') then
        signal sqlstate '22023' set message_text = 'idem: a mode is strict or loose';
    end if;
    if length(p_fingerprint) <> 32 then
        signal sqlstate '22023' set message_text = 'idem: a fingerprint has 32 bytes: use unhex(sha2(…, 256))';
    end if;
    set v_loose = lower(coalesce(p_mode, 'strict')) = 'loose';
    set v_key = idem_key(1, p_scope, p_id);
    set v_us = idem_now_us(), v_ms = v_us div 1000;

    set statement innodb_lock_wait_timeout = 0 for
    insert into idem_record values (v_key, 1, 2, v_loose, 0, p_fingerprint is not null, 1,
        v_us, idem_random_rev(), v_ms, v_ms, v_ms + v_lease, v_ms + v_ttl,
        random_bytes(8), p_fingerprint, p_scope, p_id, '', '');
    if not v_refused then
        set o_verdict = 'started', o_fence = v_us;
        leave idem;
    end if;

    -- A row that stood in the way is locked by the insert, and read as it is now,
    -- not as this transaction's snapshot has it.
    set v_none = false;
    if v_there then
        select state, mode, kind, flags, attempt, fence, rev, created, lease_until, expires,
                fingerprint, result
            into v_state, v_old_mode, v_old_kind, v_flags, v_attempt, v_last_fence, v_rev,
                v_created, v_until, v_expires, v_print, v_blob
            from idem_record where key_hash = v_key lock in share mode;
    else
        select state, mode, kind, flags, attempt, fence, rev, created, lease_until, expires,
                fingerprint, result
            into v_state, v_old_mode, v_old_kind, v_flags, v_attempt, v_last_fence, v_rev,
                v_created, v_until, v_expires, v_print, v_blob
            from idem_record where key_hash = v_key;
    end if;
    if v_none then
        set o_verdict = 'busy'; -- claimed by a transaction that has not committed
        leave idem;
    end if;
    set v_counts = v_state = 2 or v_expires = 0 or v_expires > v_ms;
    set v_over = v_state = 2 and v_until <= v_ms;
    if v_counts and p_fingerprint is not null and v_flags & 1 and v_print <> p_fingerprint then
        set o_verdict = 'mismatch';
        leave idem;
    end if;
    if v_counts and v_state in (3, 4) then
        if v_flags & 4 then
            set o_verdict = 'duplicate';
            leave idem;
        end if;
        set o_verdict = 'replay', o_fence = v_last_fence, o_kind = idem_kind_name(v_old_kind);
        set o_result = if(v_flags & 2, null, v_blob);
        leave idem;
    end if;
    if v_counts and v_state = 1 then
        set o_verdict = 'unknown';
        leave idem;
    end if;
    set v_again = v_over and v_old_mode = 1;
    if v_state = 2 and not v_again then
        set o_verdict = if(v_over, 'doubt', 'busy');
        leave idem;
    end if;

    -- Start it again, if it is as it was seen and nobody holds it.
    select rev into v_held from idem_record where key_hash = v_key for update skip locked;
    if v_none or v_held <> v_rev then
        set o_verdict = 'busy';
        leave idem;
    end if;
    set o_fence = greatest(v_last_fence + 1, v_us);
    update idem_record set state = 2, mode = v_loose, kind = 0,
        flags = p_fingerprint is not null or (v_again and v_flags & 1),
        attempt = if(v_counts, v_attempt, 0) + 1, fence = o_fence,
        rev = idem_random_rev(), created = if(v_again, v_created, v_ms), updated = v_ms,
        lease_until = v_ms + v_lease, expires = if(v_again, v_created, v_ms) + v_ttl,
        nonce = random_bytes(8),
        fingerprint = coalesce(p_fingerprint, if(v_again, v_print, null)),
        subject = '', result = '' where key_hash = v_key;
    set o_verdict = 'started';
end
;;
DELIMITER ;
/*!50003 SET sql_mode              = @saved_sql_mode */ ;
/*!50003 SET character_set_client  = @saved_cs_client */ ;
/*!50003 SET character_set_results = @saved_cs_results */ ;
/*!50003 SET collation_connection  = @saved_col_connection */ ;
/*!50003 SET @saved_sql_mode       = @@sql_mode */ ;
/*!50003 SET sql_mode              = 'STRICT_TRANS_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_AUTO_CREATE_USER,NO_ENGINE_SUBSTITUTION' */ ;
/*!50003 DROP PROCEDURE IF EXISTS `idem_check` */;
/*!50003 SET @saved_cs_client      = @@character_set_client */ ;
/*!50003 SET @saved_cs_results     = @@character_set_results */ ;
/*!50003 SET @saved_col_connection = @@collation_connection */ ;
/*!50003 SET character_set_client  = utf8mb4 */ ;
/*!50003 SET character_set_results = utf8mb4 */ ;
/*!50003 SET collation_connection  = utf8mb4_general_ci */ ;
DELIMITER ;;
CREATE DEFINER=`idem`@`127.0.0.1` PROCEDURE `idem_check`(in p_scope varbinary(1000), in p_id varbinary(1000),
    in p_lease_ms bigint, in p_ttl_ms bigint)
    NO SQL
    SQL SECURITY INVOKER
begin
    call idem_check_isolation();
    if @@in_transaction = 0 and @@autocommit = 1 then
        signal sqlstate '25000' set message_text =
            'idem: no transaction is open: start one, so that the record commits with the data';
    end if;
    if p_scope is null or length(p_scope) not between 1 and 200 or locate(x'00', p_scope) > 0 then
        signal sqlstate '22023' set message_text = 'idem: the scope has 1 to 200 bytes, none of them NUL';
    end if;
    if p_id is null or length(p_id) not between 1 and 255 or locate(x'00', p_id) > 0 then
        signal sqlstate '22023' set message_text = 'idem: the id has 1 to 255 bytes, none of them NUL';
    end if;
    if p_lease_ms not between 1 and 604800000 then
        signal sqlstate '22023' set message_text = 'idem: a lease is 1 to 604800000 ms';
    end if;
    if p_ttl_ms not between 1 and 316224000000 then
        signal sqlstate '22023' set message_text = 'idem: a TTL is 1 to 316224000000 ms';
    end if;
end
;;
DELIMITER ;
/*!50003 SET sql_mode              = @saved_sql_mode */ ;
/*!50003 SET character_set_client  = @saved_cs_client */ ;
/*!50003 SET character_set_results = @saved_cs_results */ ;
/*!50003 SET collation_connection  = @saved_col_connection */ ;
/*!50003 SET @saved_sql_mode       = @@sql_mode */ ;
/*!50003 SET sql_mode              = 'STRICT_TRANS_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_AUTO_CREATE_USER,NO_ENGINE_SUBSTITUTION' */ ;
/*!50003 DROP PROCEDURE IF EXISTS `idem_check_isolation` */;
/*!50003 SET @saved_cs_client      = @@character_set_client */ ;
/*!50003 SET @saved_cs_results     = @@character_set_results */ ;
/*!50003 SET @saved_col_connection = @@collation_connection */ ;
/*!50003 SET character_set_client  = utf8mb4 */ ;
/*!50003 SET character_set_results = utf8mb4 */ ;
/*!50003 SET collation_connection  = utf8mb4_general_ci */ ;
DELIMITER ;;
CREATE DEFINER=`idem`@`127.0.0.1` PROCEDURE `idem_check_isolation`()
    NO SQL
    SQL SECURITY INVOKER
begin
    if @@tx_isolation = 'READ-UNCOMMITTED' then
        signal sqlstate '25001' set message_text =
            'idem: READ UNCOMMITTED sees what another may still take back: use read committed';
    end if;
end
;;
DELIMITER ;
/*!50003 SET sql_mode              = @saved_sql_mode */ ;
/*!50003 SET character_set_client  = @saved_cs_client */ ;
/*!50003 SET character_set_results = @saved_cs_results */ ;
/*!50003 SET collation_connection  = @saved_col_connection */ ;
/*!50003 SET @saved_sql_mode       = @@sql_mode */ ;
/*!50003 SET sql_mode              = 'STRICT_TRANS_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_AUTO_CREATE_USER,NO_ENGINE_SUBSTITUTION' */ ;
/*!50003 DROP PROCEDURE IF EXISTS `idem_check_result` */;
/*!50003 SET @saved_cs_client      = @@character_set_client */ ;
/*!50003 SET @saved_cs_results     = @@character_set_results */ ;
/*!50003 SET @saved_col_connection = @@collation_connection */ ;
/*!50003 SET character_set_client  = utf8mb4 */ ;
/*!50003 SET character_set_results = utf8mb4 */ ;
/*!50003 SET collation_connection  = utf8mb4_general_ci */ ;
DELIMITER ;;
CREATE DEFINER=`idem`@`127.0.0.1` PROCEDURE `idem_check_result`(in p_len bigint)
    NO SQL
    SQL SECURITY INVOKER
begin
    if p_len > 67108864 then
        signal sqlstate '22023' set message_text = 'idem: a result has at most 64 MiB';
    end if;
end
;;
DELIMITER ;
/*!50003 SET sql_mode              = @saved_sql_mode */ ;
/*!50003 SET character_set_client  = @saved_cs_client */ ;
/*!50003 SET character_set_results = @saved_cs_results */ ;
/*!50003 SET collation_connection  = @saved_col_connection */ ;
/*!50003 SET @saved_sql_mode       = @@sql_mode */ ;
/*!50003 SET sql_mode              = 'STRICT_TRANS_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_AUTO_CREATE_USER,NO_ENGINE_SUBSTITUTION' */ ;
/*!50003 DROP PROCEDURE IF EXISTS `idem_declare_move` */;
/*!50003 SET @saved_cs_client      = @@character_set_client */ ;
/*!50003 SET @saved_cs_results     = @@character_set_results */ ;
/*!50003 SET @saved_col_connection = @@collation_connection */ ;
/*!50003 SET character_set_client  = utf8mb4 */ ;
/*!50003 SET character_set_results = utf8mb4 */ ;
/*!50003 SET collation_connection  = utf8mb4_general_ci */ ;
DELIMITER ;;
CREATE DEFINER=`idem`@`127.0.0.1` PROCEDURE `idem_declare_move`(in p_machine varbinary(100),
    in p_from varbinary(100), in p_to varbinary(100))
    MODIFIES SQL DATA
    SQL SECURITY INVOKER
begin
    declare continue handler for 1062 begin end;
    insert into idem_machine values (p_machine, p_from, p_to);
end
;;
DELIMITER ;
/*!50003 SET sql_mode              = @saved_sql_mode */ ;
/*!50003 SET character_set_client  = @saved_cs_client */ ;
/*!50003 SET character_set_results = @saved_cs_results */ ;
/*!50003 SET collation_connection  = @saved_col_connection */ ;
/*!50003 SET @saved_sql_mode       = @@sql_mode */ ;
/*!50003 SET sql_mode              = 'STRICT_TRANS_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_AUTO_CREATE_USER,NO_ENGINE_SUBSTITUTION' */ ;
/*!50003 DROP PROCEDURE IF EXISTS `idem_finish` */;
/*!50003 SET @saved_cs_client      = @@character_set_client */ ;
/*!50003 SET @saved_cs_results     = @@character_set_results */ ;
/*!50003 SET @saved_col_connection = @@collation_connection */ ;
/*!50003 SET character_set_client  = utf8mb4 */ ;
/*!50003 SET character_set_results = utf8mb4 */ ;
/*!50003 SET collation_connection  = utf8mb4_general_ci */ ;
DELIMITER ;;
CREATE DEFINER=`idem`@`127.0.0.1` PROCEDURE `idem_finish`(in p_scope varbinary(1000), in p_id varbinary(1000),
    in p_fence bigint, in p_state varchar(20), in p_result longblob, in p_ttl_ms bigint)
    MODIFIES SQL DATA
    SQL SECURITY INVOKER
begin
    declare v_verdict varchar(10);
    call idem_try_finish(p_scope, p_id, p_fence, p_state, p_result, p_ttl_ms, 'raw', v_verdict);
    call idem_need_ok(v_verdict);
end
;;
DELIMITER ;
/*!50003 SET sql_mode              = @saved_sql_mode */ ;
/*!50003 SET character_set_client  = @saved_cs_client */ ;
/*!50003 SET character_set_results = @saved_cs_results */ ;
/*!50003 SET collation_connection  = @saved_col_connection */ ;
/*!50003 SET @saved_sql_mode       = @@sql_mode */ ;
/*!50003 SET sql_mode              = 'STRICT_TRANS_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_AUTO_CREATE_USER,NO_ENGINE_SUBSTITUTION' */ ;
/*!50003 DROP PROCEDURE IF EXISTS `idem_finish_http` */;
/*!50003 SET @saved_cs_client      = @@character_set_client */ ;
/*!50003 SET @saved_cs_results     = @@character_set_results */ ;
/*!50003 SET @saved_col_connection = @@collation_connection */ ;
/*!50003 SET character_set_client  = utf8mb4 */ ;
/*!50003 SET character_set_results = utf8mb4 */ ;
/*!50003 SET collation_connection  = utf8mb4_general_ci */ ;
DELIMITER ;;
CREATE DEFINER=`idem`@`127.0.0.1` PROCEDURE `idem_finish_http`(in p_scope varbinary(1000), in p_id varbinary(1000),
    in p_fence bigint, in p_status int, in p_content_type varbinary(1000), in p_body longblob,
    in p_ttl_ms bigint)
    MODIFIES SQL DATA
    SQL SECURITY INVOKER
begin
    declare v_verdict varchar(10);
    if p_status is null or p_status not between 200 and 599 then
        signal sqlstate '22023' set message_text = 'idem: a status is 200 to 599';
    end if;
    if locate(x'0a', p_content_type) > 0 or locate(x'0d', p_content_type) > 0 then
        signal sqlstate '22023' set message_text = 'idem: a content type has one line';
    end if;
    call idem_try_finish(p_scope, p_id, p_fence, if(p_status < 400, 'succeeded', 'failed'),
        concat(cast(p_status as char), x'0a',
            coalesce(concat('Content-Type: ', p_content_type, x'0a'), ''), x'0a',
            coalesce(p_body, '')), p_ttl_ms, 'http', v_verdict);
    call idem_need_ok(v_verdict);
end
;;
DELIMITER ;
/*!50003 SET sql_mode              = @saved_sql_mode */ ;
/*!50003 SET character_set_client  = @saved_cs_client */ ;
/*!50003 SET character_set_results = @saved_cs_results */ ;
/*!50003 SET collation_connection  = @saved_col_connection */ ;
/*!50003 SET @saved_sql_mode       = @@sql_mode */ ;
/*!50003 SET sql_mode              = 'STRICT_TRANS_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_AUTO_CREATE_USER,NO_ENGINE_SUBSTITUTION' */ ;
/*!50003 DROP PROCEDURE IF EXISTS `idem_get` */;
/*!50003 SET @saved_cs_client      = @@character_set_client */ ;
/*!50003 SET @saved_cs_results     = @@character_set_results */ ;
/*!50003 SET @saved_col_connection = @@collation_connection */ ;
/*!50003 SET character_set_client  = utf8mb4 */ ;
/*!50003 SET character_set_results = utf8mb4 */ ;
/*!50003 SET collation_connection  = utf8mb4_general_ci */ ;
DELIMITER ;;
CREATE DEFINER=`idem`@`127.0.0.1` PROCEDURE `idem_get`(in p_scope varbinary(1000), in p_id varbinary(1000),
    out o_verdict varchar(10), out o_state varchar(10), out o_fence bigint,
    out o_kind varchar(4), out o_result longblob)
    READS SQL DATA
    SQL SECURITY INVOKER
begin
    declare v_key binary(32) default idem_find_key(p_scope, p_id);
    declare continue handler for not found set o_verdict = 'absent';

    call idem_check_isolation();
    set o_verdict = 'record', o_state = null, o_fence = null, o_kind = null, o_result = null;
    select idem_state_name(state), fence, idem_kind_name(kind), if(flags & 2, null, result)
        into o_state, o_fence, o_kind, o_result from idem_record
        where key_hash = v_key
        and (state = 2 or expires = 0 or expires > idem_now_us() div 1000);
end
;;
DELIMITER ;
/*!50003 SET sql_mode              = @saved_sql_mode */ ;
/*!50003 SET character_set_client  = @saved_cs_client */ ;
/*!50003 SET character_set_results = @saved_cs_results */ ;
/*!50003 SET collation_connection  = @saved_col_connection */ ;
/*!50003 SET @saved_sql_mode       = @@sql_mode */ ;
/*!50003 SET sql_mode              = 'STRICT_TRANS_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_AUTO_CREATE_USER,NO_ENGINE_SUBSTITUTION' */ ;
/*!50003 DROP PROCEDURE IF EXISTS `idem_join` */;
/*!50003 SET @saved_cs_client      = @@character_set_client */ ;
/*!50003 SET @saved_cs_results     = @@character_set_results */ ;
/*!50003 SET @saved_col_connection = @@collation_connection */ ;
/*!50003 SET character_set_client  = utf8mb4 */ ;
/*!50003 SET character_set_results = utf8mb4 */ ;
/*!50003 SET collation_connection  = utf8mb4_general_ci */ ;
DELIMITER ;;
CREATE DEFINER=`idem`@`127.0.0.1` PROCEDURE `idem_join`(in p_scope varbinary(1000), in p_id varbinary(1000),
    in p_fence bigint, out o_verdict varchar(10), out o_kind varchar(4), out o_result longblob)
    MODIFIES SQL DATA
    SQL SECURITY INVOKER
idem: begin
    declare v_fence, v_expires bigint;
    declare v_state, v_kind, v_flags int;
    declare v_key binary(32);
    declare v_blob longblob;
    declare v_none bool default false;
    declare continue handler for not found set v_none = true;

    set o_verdict = null, o_kind = null, o_result = null;
    call idem_check(p_scope, p_id, 1, 1);
    set v_key = idem_find_key(p_scope, p_id);
    set v_none = false;
    select fence, expires, state, kind, flags, result
        into v_fence, v_expires, v_state, v_kind, v_flags, v_blob
        from idem_record where key_hash = v_key for update skip locked;
    if v_none then
        set o_verdict = if(exists (select 1 from idem_record where key_hash = v_key),
            'busy', 'stale');
        leave idem;
    end if;
    if not (v_fence <=> p_fence) or v_state not in (2, 3, 4)
        or (v_state <> 2 and v_expires <> 0 and v_expires <= idem_now_us() div 1000) then
        set o_verdict = 'stale';
        leave idem;
    end if;
    set o_verdict = if(v_state = 2, 'started', 'replay');
    if v_state <> 2 then
        set o_kind = idem_kind_name(v_kind), o_result = if(v_flags & 2, null, v_blob);
    end if;
end
;;
DELIMITER ;
/*!50003 SET sql_mode              = @saved_sql_mode */ ;
/*!50003 SET character_set_client  = @saved_cs_client */ ;
/*!50003 SET character_set_results = @saved_cs_results */ ;
/*!50003 SET collation_connection  = @saved_col_connection */ ;
/*!50003 SET @saved_sql_mode       = @@sql_mode */ ;
/*!50003 SET sql_mode              = 'STRICT_TRANS_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_AUTO_CREATE_USER,NO_ENGINE_SUBSTITUTION' */ ;
/*!50003 DROP PROCEDURE IF EXISTS `idem_need_ok` */;
/*!50003 SET @saved_cs_client      = @@character_set_client */ ;
/*!50003 SET @saved_cs_results     = @@character_set_results */ ;
/*!50003 SET @saved_col_connection = @@collation_connection */ ;
/*!50003 SET character_set_client  = utf8mb4 */ ;
/*!50003 SET character_set_results = utf8mb4 */ ;
/*!50003 SET collation_connection  = utf8mb4_general_ci */ ;
DELIMITER ;;
CREATE DEFINER=`idem`@`127.0.0.1` PROCEDURE `idem_need_ok`(in p_verdict varchar(10))
    MODIFIES SQL DATA
    SQL SECURITY INVOKER
begin
    declare continue handler for 1399, 1422 begin end;
    if p_verdict <> 'ok' then
        call idem_undo();
    end if;
    if p_verdict = 'stale' then
        signal sqlstate '45001' set message_text =
            'idem: finish is stale: this fence does not hold the record: roll back';
    elseif p_verdict <> 'ok' then
        signal sqlstate '45002' set message_text =
            'idem: finish is finished: this fence ended it otherwise before: roll back';
    end if;
end
;;
DELIMITER ;
/*!50003 SET sql_mode              = @saved_sql_mode */ ;
/*!50003 SET character_set_client  = @saved_cs_client */ ;
/*!50003 SET character_set_results = @saved_cs_results */ ;
/*!50003 SET collation_connection  = @saved_col_connection */ ;
/*!50003 SET @saved_sql_mode       = @@sql_mode */ ;
/*!50003 SET sql_mode              = 'STRICT_TRANS_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_AUTO_CREATE_USER,NO_ENGINE_SUBSTITUTION' */ ;
/*!50003 DROP PROCEDURE IF EXISTS `idem_release` */;
/*!50003 SET @saved_cs_client      = @@character_set_client */ ;
/*!50003 SET @saved_cs_results     = @@character_set_results */ ;
/*!50003 SET @saved_col_connection = @@collation_connection */ ;
/*!50003 SET character_set_client  = utf8mb4 */ ;
/*!50003 SET character_set_results = utf8mb4 */ ;
/*!50003 SET collation_connection  = utf8mb4_general_ci */ ;
DELIMITER ;;
CREATE DEFINER=`idem`@`127.0.0.1` PROCEDURE `idem_release`(in p_scope varbinary(1000), in p_id varbinary(1000),
    in p_fence bigint, out o_verdict varchar(10))
    MODIFIES SQL DATA
    SQL SECURITY INVOKER
begin
    declare v_ms bigint default idem_now_us() div 1000;
    declare v_key binary(32);
    call idem_check(p_scope, p_id, 1, 1);
    set v_key = idem_find_key(p_scope, p_id);
    update idem_record set state = 5, flags = 0, updated = v_ms, lease_until = 0, kind = 0,
        subject = '', result = '', fingerprint = null, expires = v_ms + 3600000,
        rev = idem_random_rev()
        where key_hash = v_key and state = 2 and fence = p_fence;
    set o_verdict = if(row_count() = 1, 'ok', 'stale');
end
;;
DELIMITER ;
/*!50003 SET sql_mode              = @saved_sql_mode */ ;
/*!50003 SET character_set_client  = @saved_cs_client */ ;
/*!50003 SET character_set_results = @saved_cs_results */ ;
/*!50003 SET collation_connection  = @saved_col_connection */ ;
/*!50003 SET @saved_sql_mode       = @@sql_mode */ ;
/*!50003 SET sql_mode              = 'STRICT_TRANS_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_AUTO_CREATE_USER,NO_ENGINE_SUBSTITUTION' */ ;
/*!50003 DROP PROCEDURE IF EXISTS `idem_renew` */;
/*!50003 SET @saved_cs_client      = @@character_set_client */ ;
/*!50003 SET @saved_cs_results     = @@character_set_results */ ;
/*!50003 SET @saved_col_connection = @@collation_connection */ ;
/*!50003 SET character_set_client  = utf8mb4 */ ;
/*!50003 SET character_set_results = utf8mb4 */ ;
/*!50003 SET collation_connection  = utf8mb4_general_ci */ ;
DELIMITER ;;
CREATE DEFINER=`idem`@`127.0.0.1` PROCEDURE `idem_renew`(in p_scope varbinary(1000), in p_id varbinary(1000),
    in p_fence bigint, in p_lease_ms bigint, out o_verdict varchar(10))
    MODIFIES SQL DATA
    SQL SECURITY INVOKER
begin
    declare v_ms bigint default idem_now_us() div 1000;
    declare v_lease bigint default coalesce(p_lease_ms, 30000);
    declare v_key binary(32);
    call idem_check(p_scope, p_id, v_lease, 1);
    set v_key = idem_find_key(p_scope, p_id);
    update idem_record set lease_until = greatest(lease_until, v_ms + v_lease),
        updated = v_ms, rev = idem_random_rev()
        where key_hash = v_key and state = 2 and fence = p_fence;
    set o_verdict = if(row_count() = 1, 'ok', 'stale');
end
;;
DELIMITER ;
/*!50003 SET sql_mode              = @saved_sql_mode */ ;
/*!50003 SET character_set_client  = @saved_cs_client */ ;
/*!50003 SET character_set_results = @saved_cs_results */ ;
/*!50003 SET collation_connection  = @saved_col_connection */ ;
/*!50003 SET @saved_sql_mode       = @@sql_mode */ ;
/*!50003 SET sql_mode              = 'STRICT_TRANS_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_AUTO_CREATE_USER,NO_ENGINE_SUBSTITUTION' */ ;
/*!50003 DROP PROCEDURE IF EXISTS `idem_settle` */;
/*!50003 SET @saved_cs_client      = @@character_set_client */ ;
/*!50003 SET @saved_cs_results     = @@character_set_results */ ;
/*!50003 SET @saved_col_connection = @@collation_connection */ ;
/*!50003 SET character_set_client  = utf8mb4 */ ;
/*!50003 SET character_set_results = utf8mb4 */ ;
/*!50003 SET collation_connection  = utf8mb4_general_ci */ ;
DELIMITER ;;
CREATE DEFINER=`idem`@`127.0.0.1` PROCEDURE `idem_settle`(in p_scope varbinary(1000), in p_id varbinary(1000),
    in p_outcome varchar(20), in p_result longblob, in p_ttl_ms bigint,
    out o_verdict varchar(10), out o_state varchar(10), out o_kind varchar(4),
    out o_result longblob)
    MODIFIES SQL DATA
    SQL SECURITY INVOKER
idem: begin
    declare v_us, v_ms, v_rev, v_held, v_until, v_expires bigint;
    declare v_state, v_old_kind, v_flags, v_outcome int;
    declare v_key binary(32);
    declare v_blob longblob;
    declare v_ttl bigint default coalesce(p_ttl_ms, 86400000);
    declare v_refused, v_there, v_none, v_counts, v_over bool default false;
    declare continue handler for 1062 set v_refused = true, v_there = true;
    declare continue handler for 1205 set v_refused = true;
    declare continue handler for not found set v_none = true;

    set o_verdict = null, o_state = null, o_kind = null, o_result = null;
    call idem_check(p_scope, p_id, 1, v_ttl);
    call idem_check_result(length(p_result));
    set v_outcome = case lower(coalesce(p_outcome, 'failed')) when 'succeeded' then 3
        when 'failed' then 4 end;
    if v_outcome is null then
        signal sqlstate '22023' set message_text = 'idem: an outcome is succeeded or failed';
    end if;
    set v_key = idem_find_key(p_scope, p_id);
    set v_us = idem_now_us(), v_ms = v_us div 1000;
    set statement innodb_lock_wait_timeout = 0 for
    insert into idem_record values (v_key, 1, v_outcome, 0, 0, 8, 0, v_us, idem_random_rev(),
        v_ms, v_ms, 0, v_ms + v_ttl, random_bytes(8), null, p_scope, p_id, '',
        coalesce(p_result, ''));
    if not v_refused then
        set o_verdict = 'settled', o_state = idem_state_name(v_outcome), o_kind = 'raw';
        leave idem;
    end if;
    set v_none = false;
    if v_there then
        select state, kind, flags, rev, lease_until, expires, result
            into v_state, v_old_kind, v_flags, v_rev, v_until, v_expires, v_blob
            from idem_record where key_hash = v_key lock in share mode;
    else
        select state, kind, flags, rev, lease_until, expires, result
            into v_state, v_old_kind, v_flags, v_rev, v_until, v_expires, v_blob
            from idem_record where key_hash = v_key;
    end if;
    if v_none then
        set o_verdict = 'busy';
        leave idem;
    end if;
    set v_counts = v_state = 2 or v_expires = 0 or v_expires > v_ms;
    set v_over = v_state = 2 and v_until <= v_ms;
    if v_counts and v_state in (3, 4) then
        set o_verdict = 'replay', o_state = idem_state_name(v_state),
            o_kind = idem_kind_name(v_old_kind), o_result = if(v_flags & 2, null, v_blob);
        leave idem;
    end if;
    if v_state = 2 and not (v_over and p_outcome is not null) then
        set o_verdict = if(v_over, 'doubt', 'busy'), o_state = 'executing';
        leave idem;
    end if;
    select rev into v_held from idem_record where key_hash = v_key for update skip locked;
    if v_none or v_held <> v_rev then
        set o_verdict = 'busy';
        leave idem;
    end if;
    -- What is not executing starts a new life: only fence and count go on. (An
    -- assignment sees the ones before it, so state comes last.)
    update idem_record set kind = 0, result = coalesce(p_result, ''),
        flags = if(state = 2, flags, 0) | 8, mode = if(state = 2, mode, 0),
        attempt = if(v_counts, attempt, 0), fingerprint = if(state = 2, fingerprint, null),
        subject = if(state = 2, subject, ''), nonce = if(state = 2, nonce, random_bytes(8)),
        fence = greatest(fence + 1, v_us), rev = idem_random_rev(),
        created = if(state = 2, created, v_ms), updated = v_ms, lease_until = 0,
        expires = v_ms + v_ttl, state = v_outcome where key_hash = v_key;
    set o_verdict = 'settled', o_state = idem_state_name(v_outcome), o_kind = 'raw';
end
;;
DELIMITER ;
/*!50003 SET sql_mode              = @saved_sql_mode */ ;
/*!50003 SET character_set_client  = @saved_cs_client */ ;
/*!50003 SET character_set_results = @saved_cs_results */ ;
/*!50003 SET collation_connection  = @saved_col_connection */ ;
/*!50003 SET @saved_sql_mode       = @@sql_mode */ ;
/*!50003 SET sql_mode              = 'STRICT_TRANS_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_AUTO_CREATE_USER,NO_ENGINE_SUBSTITUTION' */ ;
/*!50003 DROP PROCEDURE IF EXISTS `idem_sweep` */;
/*!50003 SET @saved_cs_client      = @@character_set_client */ ;
/*!50003 SET @saved_cs_results     = @@character_set_results */ ;
/*!50003 SET @saved_col_connection = @@collation_connection */ ;
/*!50003 SET character_set_client  = utf8mb4 */ ;
/*!50003 SET character_set_results = utf8mb4 */ ;
/*!50003 SET collation_connection  = utf8mb4_general_ci */ ;
DELIMITER ;;
CREATE DEFINER=`idem`@`127.0.0.1` PROCEDURE `idem_sweep`(in p_most int, out o_gone bigint)
    MODIFIES SQL DATA
    SQL SECURITY INVOKER
begin
    declare v_most bigint default coalesce(p_most, 1000);
    delete from idem_record where state in (1, 3, 4, 5)
        and expires between 1 and idem_now_us() div 1000 - 1 limit v_most;
    set o_gone = row_count();
end
;;
DELIMITER ;
/*!50003 SET sql_mode              = @saved_sql_mode */ ;
/*!50003 SET character_set_client  = @saved_cs_client */ ;
/*!50003 SET character_set_results = @saved_cs_results */ ;
/*!50003 SET collation_connection  = @saved_col_connection */ ;
/*!50003 SET @saved_sql_mode       = @@sql_mode */ ;
/*!50003 SET sql_mode              = 'STRICT_TRANS_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_AUTO_CREATE_USER,NO_ENGINE_SUBSTITUTION' */ ;
/*!50003 DROP PROCEDURE IF EXISTS `idem_transition` */;
/*!50003 SET @saved_cs_client      = @@character_set_client */ ;
/*!50003 SET @saved_cs_results     = @@character_set_results */ ;
/*!50003 SET @saved_col_connection = @@collation_connection */ ;
/*!50003 SET character_set_client  = utf8mb4 */ ;
/*!50003 SET character_set_results = utf8mb4 */ ;
/*!50003 SET collation_connection  = utf8mb4_general_ci */ ;
DELIMITER ;;
CREATE DEFINER=`idem`@`127.0.0.1` PROCEDURE `idem_transition`(in p_machine varchar(100) charset utf8mb4,
    in p_table varchar(129) charset utf8mb4, in p_key_column varchar(64) charset utf8mb4,
    in p_key varchar(255) charset utf8mb4, in p_state_column varchar(64) charset utf8mb4,
    in p_from varchar(100) charset utf8mb4, in p_to varchar(100) charset utf8mb4,
    out o_verdict varchar(10))
    MODIFIES SQL DATA
    SQL SECURITY INVOKER
idem: begin
    declare v_moved bigint;
    declare v_table varchar(300) charset utf8mb4
        default concat('`', replace(replace(p_table, '`', '``'), '.', '`.`'), '`');
    declare v_key varchar(200) charset utf8mb4
        default concat('`', replace(p_key_column, '`', '``'), '`');
    declare v_state varchar(200) charset utf8mb4
        default concat('`', replace(p_state_column, '`', '``'), '`');

    call idem_check('-', '-', 1, 1);
    if not exists (select 1 from idem_machine where machine = p_machine
        and from_state = p_from and to_state = p_to) then
        set o_verdict = 'refused';
        leave idem;
    end if;
    set @idem_to = p_to, @idem_key = p_key, @idem_from = p_from;
    execute immediate concat('update ', v_table, ' set ', v_state, ' = ? where ', v_key,
        ' = ? and ', v_state, ' = ?') using @idem_to, @idem_key, @idem_from;
    set v_moved = row_count();
    if v_moved > 1 then
        signal sqlstate '21000' set message_text = 'idem: the key column is not unique: roll back';
    end if;
    if v_moved = 1 then
        set o_verdict = 'first';
        leave idem;
    end if;
    execute immediate concat('select count(*) into @idem_there from ', v_table, ' where ', v_key,
        ' = ? and ', v_state, ' = ?') using @idem_key, @idem_to;
    set o_verdict = if(@idem_there > 0, 'duplicate', 'refused');
end
;;
DELIMITER ;
/*!50003 SET sql_mode              = @saved_sql_mode */ ;
/*!50003 SET character_set_client  = @saved_cs_client */ ;
/*!50003 SET character_set_results = @saved_cs_results */ ;
/*!50003 SET collation_connection  = @saved_col_connection */ ;
/*!50003 SET @saved_sql_mode       = @@sql_mode */ ;
/*!50003 SET sql_mode              = 'STRICT_TRANS_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_AUTO_CREATE_USER,NO_ENGINE_SUBSTITUTION' */ ;
/*!50003 DROP PROCEDURE IF EXISTS `idem_try_finish` */;
/*!50003 SET @saved_cs_client      = @@character_set_client */ ;
/*!50003 SET @saved_cs_results     = @@character_set_results */ ;
/*!50003 SET @saved_col_connection = @@collation_connection */ ;
/*!50003 SET character_set_client  = utf8mb4 */ ;
/*!50003 SET character_set_results = utf8mb4 */ ;
/*!50003 SET collation_connection  = utf8mb4_general_ci */ ;
DELIMITER ;;
CREATE DEFINER=`idem`@`127.0.0.1` PROCEDURE `idem_try_finish`(in p_scope varbinary(1000), in p_id varbinary(1000),
    in p_fence bigint, in p_state varchar(20), in p_result longblob, in p_ttl_ms bigint,
    in p_kind varchar(10), out o_verdict varchar(10))
    MODIFIES SQL DATA
    SQL SECURITY INVOKER
idem: begin
    declare v_ms, v_fence, v_created, v_expires bigint;
    declare v_state, v_mode, v_old_kind, v_flags, v_outcome, v_kind int;
    declare v_key binary(32);
    declare v_value longblob default coalesce(p_result, '');
    declare v_blob longblob;
    declare v_none, v_frees bool default false;
    declare continue handler for not found set v_none = true;

    set o_verdict = null;
    call idem_check(p_scope, p_id, 1, coalesce(p_ttl_ms, 1));
    call idem_check_result(length(p_result));
    set v_outcome = case lower(p_state) when 'succeeded' then 3 when 'failed' then 4 end;
    set v_kind = case lower(coalesce(p_kind, 'raw')) when 'raw' then 0 when 'http' then 1
        when 'exec' then 2 end;
    if v_outcome is null then
        signal sqlstate '22023' set message_text = 'idem: an outcome is succeeded or failed';
    end if;
    if v_kind is null then
        signal sqlstate '22023' set message_text = 'idem: a kind is raw, http or exec';
    end if;
    set v_key = idem_find_key(p_scope, p_id);
    set v_ms = idem_now_us() div 1000, v_none = false;
    select fence, created, expires, state, mode, kind, flags, result
        into v_fence, v_created, v_expires, v_state, v_mode, v_old_kind, v_flags, v_blob
        from idem_record where key_hash = v_key for update;
    if v_none or not (v_fence <=> p_fence)
        or (v_state <> 2 and v_expires <> 0 and v_expires <= v_ms) then
        set o_verdict = 'stale';
        leave idem;
    end if;
    set v_frees = v_mode = 1 and v_outcome = 4;
    if v_state <> 2 then
        set o_verdict = case when v_frees and v_state = 5 then 'ok'
            when v_state not in (3, 4) then 'stale'
            when v_state = v_outcome and v_old_kind = v_kind and not v_flags & 2
                and v_blob = v_value then 'ok'
            else 'finished' end;
        leave idem;
    end if;
    if v_frees then
        update idem_record set state = 5, flags = 0, updated = v_ms, lease_until = 0, kind = 0,
            subject = '', result = '', fingerprint = null, expires = v_ms + 3600000,
            rev = idem_random_rev() where key_hash = v_key;
    else
        update idem_record set state = v_outcome, kind = v_kind, result = v_value,
            updated = v_ms, lease_until = 0, rev = idem_random_rev(),
            expires = v_ms + coalesce(p_ttl_ms,
                if(v_expires > v_created, v_expires - v_created, 86400000))
            where key_hash = v_key;
    end if;
    set o_verdict = 'ok';
end
;;
DELIMITER ;
/*!50003 SET sql_mode              = @saved_sql_mode */ ;
/*!50003 SET character_set_client  = @saved_cs_client */ ;
/*!50003 SET character_set_results = @saved_cs_results */ ;
/*!50003 SET collation_connection  = @saved_col_connection */ ;
/*!50003 SET @saved_sql_mode       = @@sql_mode */ ;
/*!50003 SET sql_mode              = 'STRICT_TRANS_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_AUTO_CREATE_USER,NO_ENGINE_SUBSTITUTION' */ ;
/*!50003 DROP PROCEDURE IF EXISTS `idem_undo` */;
/*!50003 SET @saved_cs_client      = @@character_set_client */ ;
/*!50003 SET @saved_cs_results     = @@character_set_results */ ;
/*!50003 SET @saved_col_connection = @@collation_connection */ ;
/*!50003 SET character_set_client  = utf8mb4 */ ;
/*!50003 SET character_set_results = utf8mb4 */ ;
/*!50003 SET collation_connection  = utf8mb4_general_ci */ ;
DELIMITER ;;
CREATE DEFINER=`idem`@`127.0.0.1` PROCEDURE `idem_undo`()
    MODIFIES SQL DATA
    SQL SECURITY INVOKER
rollback
;;
DELIMITER ;
/*!50003 SET sql_mode              = @saved_sql_mode */ ;
/*!50003 SET character_set_client  = @saved_cs_client */ ;
/*!50003 SET character_set_results = @saved_cs_results */ ;
/*!50003 SET collation_connection  = @saved_col_connection */ ;
/*!40103 SET TIME_ZONE=@OLD_TIME_ZONE */;

/*!40101 SET SQL_MODE=@OLD_SQL_MODE */;
/*!40014 SET FOREIGN_KEY_CHECKS=@OLD_FOREIGN_KEY_CHECKS */;
/*!40014 SET UNIQUE_CHECKS=@OLD_UNIQUE_CHECKS */;
/*!40101 SET CHARACTER_SET_CLIENT=@OLD_CHARACTER_SET_CLIENT */;
/*!40101 SET CHARACTER_SET_RESULTS=@OLD_CHARACTER_SET_RESULTS */;
/*!40101 SET COLLATION_CONNECTION=@OLD_COLLATION_CONNECTION */;
/*!40111 SET SQL_NOTES=@OLD_SQL_NOTES */;

